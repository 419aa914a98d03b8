import java.nio.file.Path;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/**
 * Flink SQL, exactly-once: records are counted per key and window of ten seconds of event time. The key is the last
 * digits of a record's number, the event time is the third field of a record. Arguments: as {@code FlinkSqlCount}.
 *
 * <p>Settings, and why: see {@code FlinkSqlCount}. Windows by the table-valued function {@code TUMBLE}, as Flink's
 * documentation recommends; it has a local and a global phase by itself. The watermark is five seconds late. A partition
 * that is read first does not run ahead: Flink takes the least watermark of a subtask's partitions.
 */
public final class FlinkSqlWindows {
  private FlinkSqlWindows() {}

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
        "CREATE TABLE source (v STRING, ts AS TO_TIMESTAMP_LTZ(CAST(SUBSTRING(v FROM 18 FOR 16) AS BIGINT) / 1000, 3)"
            + ", WATERMARK FOR ts AS ts - INTERVAL '5' SECOND) WITH ('connector' = 'kafka', 'format' = 'raw'"
            + topic(args[0], args[1])
            + ", 'scan.startup.mode' = 'earliest-offset'"
            + ", 'properties.isolation.level' = 'read_committed'"
            + ", 'properties.group.id' = 'flink-sql-" + args[2] + "')");
    tables.executeSql(
        "CREATE TABLE target (k STRING, c STRING)"
            + " WITH ('connector' = 'kafka', 'key.format' = 'raw', 'value.format' = 'raw'"
            + ", 'key.fields' = 'k', 'value.fields-include' = 'EXCEPT_KEY'"
            + topic(args[0], args[2])
            + ", 'sink.delivery-guarantee' = 'exactly-once'"
            + ", 'sink.transactional-id-prefix' = 'flink-sql-" + args[2] + "'"
            + ", 'properties.transaction.timeout.ms' = '600000'"
            + ", 'properties.linger.ms' = '20'"
            + ", 'properties.batch.size' = '1000000')");
    tables.executeSql(
        "CREATE VIEW keyed AS SELECT ts, SUBSTRING(v FROM " + (17 - digits) + " FOR " + digits + ") AS k FROM source");
    tables.executeSql(
            "INSERT INTO target SELECT CAST(window_start AS STRING) || '|' || k, CAST(COUNT(*) AS STRING)"
                + " FROM TABLE(TUMBLE(TABLE keyed, DESCRIPTOR(ts), INTERVAL '10' SECONDS))"
                + " GROUP BY k, window_start, window_end")
        .await();
  }

  private static String topic(String bootstrap, String topic) {
    return ", 'properties.bootstrap.servers' = '" + bootstrap + "', 'topic' = '" + topic + "'";
  }
}
