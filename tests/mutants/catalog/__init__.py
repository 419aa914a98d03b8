"""The mutants, by the part of the product that they break; plain data."""

from tests.mutants.catalog import (
    checkpoint_store,
    continuous,
    coordinator,
    drop_in,
    event_time,
    hdfs,
    kafka_committing,
    kafka_producers,
    kafka_requests,
    kafka_source,
    kafka_writing,
    keyed_state,
    operator_state,
    ownership,
    registry,
    spark,
    startup,
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
    *event_time.MUTANTS,
    *operator_state.MUTANTS,
    *drop_in.MUTANTS,
    *spark.MUTANTS,
    *testing.MUTANTS,
    *registry.MUTANTS,
)
