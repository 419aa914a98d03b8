"""The mutants, by the part of the product that they break; plain data."""

from tests.mutants.catalog import (
    checkpoint_store,
    continuous,
    coordinator,
    drop_in,
    hdfs,
    kafka_committing,
    kafka_producers,
    kafka_requests,
    kafka_source,
    kafka_writing,
    keyed_state,
    ownership,
    registry,
    spark,
    startup,
    state_files,
    testing,
)
from tests.mutants.model import Mutant

ALL_MUTANTS: tuple[Mutant, ...] = (
    *kafka_writing.MUTANTS,
    *kafka_producers.MUTANTS,
    *kafka_requests.MUTANTS,
    *kafka_committing.MUTANTS,
    *kafka_source.MUTANTS,
    *hdfs.MUTANTS,
    *checkpoint_store.MUTANTS,
    *ownership.MUTANTS,
    *startup.MUTANTS,
    *coordinator.MUTANTS,
    *continuous.MUTANTS,
    *keyed_state.MUTANTS,
    *state_files.MUTANTS,
    *drop_in.MUTANTS,
    *spark.MUTANTS,
    *testing.MUTANTS,
    *registry.MUTANTS,
)
