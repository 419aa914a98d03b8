import java.nio.file.Path;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/**
 * Flink SQL, exactly-once: records are counted per key, the last digits of a record's number. Arguments:
 * bootstrap input output directory interval_ms digits backend; the backend is {@code hashmap} or {@code rocksdb}.
 *
 * <p>Settings, and why. Parallelism 2: one subtask for each core, two partitions each. Object reuse: Flink's
 * documentation recommends it if no function keeps its input, and chained operators then pass rows without a copy.
 * Checkpoints every interval, exactly-once and aligned, because no shuffle delays barriers. Their directory is local, as
 * for all contenders. The format {@code raw} neither parses nor escapes. The transaction timeout is below the broker's
 * maximum and far above the interval, as the connector's documentation recommends. {@code linger.ms} and
 * {@code batch.size} are as for all contenders. Mini-batches and two phases: Flink's tuning page recommends both for such
 * an aggregation, and a mini-batch of the interval writes each key once, as a batch of Spark does. RocksDB has incremental
 * checkpoints, as Flink recommends for it. All other settings, with the fetch sizes, are Flink's defaults.
 */
public final class FlinkSqlCount {
  private FlinkSqlCount() {}

  public static void main(String[] args) throws Exception {
    int digits = Integer.parseInt(args[5]);
    Configuration settings = new Configuration();
    settings.setString("parallelism.default", "2");
    settings.setString("pipeline.object-reuse", "true");
    settings.setString("restart-strategy.type", "none"); // a failure must be seen
    settings.setString("execution.checkpointing.interval", args[4] + " ms");
    settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
    settings.setString("execution.checkpointing.dir", Path.of(args[3], "checkpoints").toUri().toString());
    settings.setString("state.backend.type", args[6]);
    settings.setString("execution.checkpointing.incremental", "true"); // of rocksdb only
    settings.setString("table.exec.mini-batch.enabled", "true");
    settings.setString("table.exec.mini-batch.allow-latency", args[4] + " ms");
    settings.setString("table.exec.mini-batch.size", "400000");
    settings.setString("table.optimizer.agg-phase-strategy", "TWO_PHASE");
    TableEnvironment tables =
        TableEnvironment.create(EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(settings).build());
    tables.executeSql(
        "CREATE TABLE source (v STRING) WITH ('connector' = 'kafka', 'format' = 'raw'"
            + topic(args[0], args[1])
            + ", 'scan.startup.mode' = 'earliest-offset'"
            + ", 'properties.isolation.level' = 'read_committed'"
            + ", 'properties.group.id' = 'flink-sql-" + args[2] + "')");
    tables.executeSql(
        "CREATE TABLE target (k STRING, c STRING, PRIMARY KEY (k) NOT ENFORCED)"
            + " WITH ('connector' = 'upsert-kafka', 'key.format' = 'raw', 'value.format' = 'raw'"
            + ", 'value.fields-include' = 'EXCEPT_KEY'"
            + topic(args[0], args[2])
            + ", 'sink.delivery-guarantee' = 'exactly-once'"
            + ", 'sink.transactional-id-prefix' = 'flink-sql-" + args[2] + "'"
            + ", 'properties.transaction.timeout.ms' = '600000'"
            + ", 'properties.linger.ms' = '20'"
            + ", 'properties.batch.size' = '1000000')");
    tables.executeSql(
            "INSERT INTO target SELECT k, CAST(COUNT(*) AS STRING)"
                + " FROM (SELECT SUBSTRING(v FROM " + (17 - digits) + " FOR " + digits + ") AS k FROM source) GROUP BY k")
        .await();
  }

  private static String topic(String bootstrap, String topic) {
    return ", 'properties.bootstrap.servers' = '" + bootstrap + "', 'topic' = '" + topic + "'";
  }
}
