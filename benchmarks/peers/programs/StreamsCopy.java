import java.nio.file.Path;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;

/**
 * Kafka Streams, exactly_once_v2: every value gains a "!". Arguments: bootstrap input output directory interval_ms.
 *
 * <p>Settings, and why. {@code exactly_once_v2} has one producer for each thread, and reads committed records only.
 * Two threads: one for each core, two partitions each. {@code commit.interval.ms} is the interval of the run; the
 * default with this guarantee is 100. Bytes in and out avoid decoding. {@code linger.ms} and {@code batch.size} are as
 * for all contenders, and four batches of that size fit into the producer's default buffer. Without state, caches and
 * standbys have no effect. All other settings, with {@code max.poll.records}, are Streams' defaults.
 */
public final class StreamsCopy {
  private StreamsCopy() {}

  public static void main(String[] args) throws Exception {
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-" + args[2]);
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, Path.of(args[3], "state").toString());
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, args[4]);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArray().getClass());
    settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArray().getClass());
    settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
    settings.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 20);
    settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 1_000_000);

    StreamsBuilder builder = new StreamsBuilder();
    builder.<byte[], byte[]>stream(args[1]).mapValues(StreamsCopy::exclaim).to(args[2]);

    CountDownLatch ended = new CountDownLatch(1);
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setUncaughtExceptionHandler(
        error -> {
          error.printStackTrace();
          ended.countDown();
          return StreamThreadExceptionResponse.SHUTDOWN_APPLICATION;
        });
    streams.start();
    ended.await();
    System.exit(1);
  }

  private static byte[] exclaim(byte[] value) {
    byte[] changed = Arrays.copyOf(value, value.length + 1);
    changed[value.length] = '!';
    return changed;
  }
}
