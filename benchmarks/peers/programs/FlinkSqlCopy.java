import java.nio.file.Path;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.TableEnvironment;

/**
 * Flink SQL, exactly-once: every value gains a "!". Arguments: bootstrap input output directory interval_ms.
 *
 * <p>Settings, and why. Parallelism 2: one subtask for each core, two partitions each. Object reuse: Flink's
 * documentation recommends it if no function keeps its input, and chained operators then pass rows without a copy.
 * Checkpoints every interval, exactly-once and aligned, because no shuffle delays barriers. Their directory is local, as
 * for all contenders. The format {@code raw} neither parses nor escapes. The transaction timeout is below the broker's
 * maximum and far above the interval, as the connector's documentation recommends. {@code linger.ms} and
 * {@code batch.size} are as for all contenders; all other settings, with the fetch sizes, are Flink's defaults.
 */
public final class FlinkSqlCopy {
  private FlinkSqlCopy() {}

  public static void main(String[] args) throws Exception {
    Configuration settings = new Configuration();
    settings.setString("parallelism.default", "2");
    settings.setString("pipeline.object-reuse", "true");
    settings.setString("restart-strategy.type", "none"); // a failure must be seen
    settings.setString("execution.checkpointing.interval", args[4] + " ms");
    settings.setString("execution.checkpointing.mode", "EXACTLY_ONCE");
    settings.setString("execution.checkpointing.dir", Path.of(args[3], "checkpoints").toUri().toString());
    TableEnvironment tables =
        TableEnvironment.create(EnvironmentSettings.newInstance().inStreamingMode().withConfiguration(settings).build());
    tables.executeSql(
        table("source", args[0], args[1])
            + ", 'scan.startup.mode' = 'earliest-offset'"
            + ", 'properties.isolation.level' = 'read_committed'"
            + ", 'properties.group.id' = 'flink-sql-" + args[2] + "')");
    tables.executeSql(
        table("target", args[0], args[2])
            + ", 'sink.delivery-guarantee' = 'exactly-once'"
            + ", 'sink.transactional-id-prefix' = 'flink-sql-" + args[2] + "'"
            + ", 'properties.transaction.timeout.ms' = '600000'"
            + ", 'properties.linger.ms' = '20'"
            + ", 'properties.batch.size' = '1000000')");
    tables.executeSql("INSERT INTO target SELECT CONCAT(v, '!') FROM source").await();
  }

  private static String table(String name, String bootstrap, String topic) {
    return "CREATE TABLE " + name + " (v STRING) WITH ('connector' = 'kafka', 'format' = 'raw'"
        + ", 'properties.bootstrap.servers' = '" + bootstrap + "', 'topic' = '" + topic + "'";
  }
}
