import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import org.apache.kafka.clients.consumer.ConsumerConfig;
import org.apache.kafka.clients.producer.ProducerConfig;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.StreamsConfig;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Produced;

/**
 * Kafka Streams, exactly_once_v2: records are counted per key, the last digits of a record's number. Arguments: bootstrap
 * input output directory interval_ms digits.
 *
 * <p>Settings, and why: see {@code StreamsCopy}. Streams groups through a repartition topic, because it cannot know that
 * the values of the input are partitioned by the key. The store is Streams' default, RocksDB with a changelog topic. The
 * cache of 256 MiB writes each changed key once for each commit, as the other contenders do.
 */
public final class StreamsCount {
  private StreamsCount() {}

  public static void main(String[] args) throws Exception {
    Properties settings = new Properties();
    settings.put(StreamsConfig.APPLICATION_ID_CONFIG, "streams-" + args[2]);
    settings.put(StreamsConfig.BOOTSTRAP_SERVERS_CONFIG, args[0]);
    settings.put(StreamsConfig.STATE_DIR_CONFIG, Path.of(args[3], "state").toString());
    settings.put(StreamsConfig.PROCESSING_GUARANTEE_CONFIG, StreamsConfig.EXACTLY_ONCE_V2);
    settings.put(StreamsConfig.COMMIT_INTERVAL_MS_CONFIG, args[4]);
    settings.put(StreamsConfig.STATESTORE_CACHE_MAX_BYTES_CONFIG, 256L << 20);
    settings.put(StreamsConfig.NUM_STREAM_THREADS_CONFIG, 2);
    settings.put(StreamsConfig.DEFAULT_KEY_SERDE_CLASS_CONFIG, Serdes.ByteArray().getClass());
    settings.put(StreamsConfig.DEFAULT_VALUE_SERDE_CLASS_CONFIG, Serdes.ByteArray().getClass());
    settings.put(StreamsConfig.consumerPrefix(ConsumerConfig.AUTO_OFFSET_RESET_CONFIG), "earliest");
    settings.put(StreamsConfig.producerPrefix(ProducerConfig.LINGER_MS_CONFIG), 20);
    settings.put(StreamsConfig.producerPrefix(ProducerConfig.BATCH_SIZE_CONFIG), 1_000_000);

    StreamsBuilder builder = new StreamsBuilder();
    int digits = Integer.parseInt(args[5]);
    builder.<byte[], byte[]>stream(args[1])
        .groupBy(
            (key, value) -> new String(value, 16 - digits, digits, StandardCharsets.US_ASCII),
            Grouped.with(Serdes.String(), Serdes.ByteArray()))
        .count()
        .toStream()
        .mapValues(count -> Long.toString(count))
        .to(args[2], Produced.with(Serdes.String(), Serdes.String()));

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
}
