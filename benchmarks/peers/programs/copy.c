/* The minimum work of a client of librdkafka. It gives each record from the consumer's fetch buffer
 * to the producer, with a `!` after it, in transactions with the input's offsets.
 *
 * copy BOOTSTRAP INPUT OUTPUT INTERVAL_MS PARTITIONS THREADS: runs until it is killed, with the
 * settings that Sluice gives its clients. It neither decodes nor copies values, and handles neither
 * other clients nor failures: a bound for other programs, not a program to use.
 *
 * Compiled against the librdkafka of confluent-kafka, without its header. All declarations here
 * belong to its public, stable interface (rdkafka.h).
 */
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_conf_s rd_kafka_conf_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_error_s rd_kafka_error_t;
typedef struct rd_kafka_consumer_group_metadata_s group_t;
typedef struct {
    char *topic;
    int32_t partition;
    int64_t offset;
    void *metadata;
    size_t metadata_size;
    void *opaque;
    int err;
    void *private_;
} partition_t;
typedef struct {
    int count, size;
    partition_t *elements;
} partitions_t;
typedef struct {
    int err;
    rd_kafka_topic_t *topic;
    int32_t partition;
    void *payload;
    size_t length;
    void *key;
    size_t key_length;
    int64_t offset;
    void *private_;
} message_t;

enum { PRODUCER, CONSUMER };
enum { F_COPY = 2, QUEUE_FULL = -184, MOST = 10000 };

rd_kafka_conf_t *rd_kafka_conf_new(void);
int rd_kafka_conf_set(rd_kafka_conf_t *, const char *, const char *, char *, size_t);
rd_kafka_t *rd_kafka_new(int, rd_kafka_conf_t *, char *, size_t);
rd_kafka_topic_t *rd_kafka_topic_new(rd_kafka_t *, const char *, void *);
int rd_kafka_poll_set_consumer(rd_kafka_t *);
rd_kafka_queue_t *rd_kafka_queue_get_consumer(rd_kafka_t *);
partitions_t *rd_kafka_topic_partition_list_new(int);
partition_t *rd_kafka_topic_partition_list_add(partitions_t *, const char *, int32_t);
void rd_kafka_topic_partition_list_destroy(partitions_t *);
int rd_kafka_assign(rd_kafka_t *, const partitions_t *);
ptrdiff_t rd_kafka_consume_batch_queue(rd_kafka_queue_t *, int, message_t **, size_t);
void rd_kafka_message_destroy(message_t *);
int rd_kafka_produce(rd_kafka_topic_t *, int32_t, int, void *, size_t, const void *, size_t, void *);
int rd_kafka_last_error(void);
int rd_kafka_poll(rd_kafka_t *, int);
group_t *rd_kafka_consumer_group_metadata(rd_kafka_t *);
void rd_kafka_consumer_group_metadata_destroy(group_t *);
rd_kafka_error_t *rd_kafka_init_transactions(rd_kafka_t *, int);
rd_kafka_error_t *rd_kafka_begin_transaction(rd_kafka_t *);
rd_kafka_error_t *rd_kafka_send_offsets_to_transaction(rd_kafka_t *, const partitions_t *,
                                                       const group_t *, int);
rd_kafka_error_t *rd_kafka_commit_transaction(rd_kafka_t *, int);
const char *rd_kafka_error_string(const rd_kafka_error_t *);

typedef struct {
    const char *bootstrap, *input, *output;
    int interval_ms, partitions, threads, number;
} order_t;

static void end(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(1);
}

static void check(rd_kafka_error_t *error) {
    if (error)
        end(rd_kafka_error_string(error));
}

static rd_kafka_t *client(int type, const char *const (*settings)[2]) {
    char said[256];
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    for (; (*settings)[0]; settings++)
        if (rd_kafka_conf_set(conf, (*settings)[0], (*settings)[1], said, sizeof said))
            end(said);
    rd_kafka_t *made = rd_kafka_new(type, conf, said, sizeof said);
    if (!made)
        end(said);
    return made;
}

static int64_t now_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* The byte after a value is the number of headers, which librdkafka has parsed. The `!` replaces it
 * while the producer copies the value. */
static void send_on(rd_kafka_t *producer, rd_kafka_topic_t *output, message_t *message) {
    char *after = (char *)message->payload + message->length, kept = *after;
    *after = '!';
    while (rd_kafka_produce(output, message->partition, F_COPY, message->payload,
                            message->length + 1, message->key, message->key_length, NULL)) {
        if (rd_kafka_last_error() != QUEUE_FULL)
            end("a record was refused");
        rd_kafka_poll(producer, 5);
    }
    *after = kept;
}

static void *copy(void *given) {
    const order_t *order = given;
    char name[256];
    snprintf(name, sizeof name, "copy-%s-%d", order->output, order->number);
    const char *const reading[][2] = {
        {"bootstrap.servers", order->bootstrap}, {"group.id", name},
        {"enable.auto.commit", "false"}, {"isolation.level", "read_committed"},
        {"auto.offset.reset", "earliest"}, {"fetch.queue.backoff.ms", "5"},
        {"queued.max.messages.kbytes", "13312"}, {"queued.min.messages", "34078"},
        {"fetch.max.bytes", "1703936"}, {"fetch.message.max.bytes", "1048576"},
        {"check.crcs", "true"}, {NULL, NULL}};
    const char *const writing[][2] = {
        {"bootstrap.servers", order->bootstrap}, {"transactional.id", name},
        {"linger.ms", "100"}, {"batch.size", "1000000"}, {"batch.num.messages", "13312"},
        {"queue.buffering.max.kbytes", "13312"}, {"queue.buffering.max.messages", "53248"},
        {NULL, NULL}};
    rd_kafka_t *consumer = client(CONSUMER, reading), *producer = client(PRODUCER, writing);
    rd_kafka_topic_t *output = rd_kafka_topic_new(producer, order->output, NULL);
    partitions_t *positions = rd_kafka_topic_partition_list_new(order->partitions);
    for (int p = order->number; p < order->partitions; p += order->threads)
        rd_kafka_topic_partition_list_add(positions, order->input, p)->offset = 0;
    check(rd_kafka_init_transactions(producer, 30000));
    rd_kafka_poll_set_consumer(consumer);
    rd_kafka_assign(consumer, positions);
    rd_kafka_queue_t *queue = rd_kafka_queue_get_consumer(consumer);
    message_t **messages = malloc(MOST * sizeof *messages);

    for (;;) {
        int is_open = 0;
        for (int64_t until = now_ms() + order->interval_ms; now_ms() < until;) {
            ptrdiff_t count = rd_kafka_consume_batch_queue(queue, 50, messages, MOST);
            if (count > 0 && !is_open++)
                check(rd_kafka_begin_transaction(producer));
            for (ptrdiff_t i = 0; i < count; i++) {
                if (messages[i]->err)
                    end("the input ended or failed");
                send_on(producer, output, messages[i]);
                partition_t *at = &positions->elements[messages[i]->partition / order->threads];
                at->offset = messages[i]->offset + 1;
                rd_kafka_message_destroy(messages[i]);
            }
        }
        if (!is_open)
            continue;
        group_t *group = rd_kafka_consumer_group_metadata(consumer);
        check(rd_kafka_send_offsets_to_transaction(producer, positions, group, 30000));
        rd_kafka_consumer_group_metadata_destroy(group);
        check(rd_kafka_commit_transaction(producer, 30000));
    }
    return NULL;
}

int main(int count, char **arguments) {
    if (count != 7)
        end("copy BOOTSTRAP INPUT OUTPUT INTERVAL_MS PARTITIONS THREADS");
    int threads = atoi(arguments[6]);
    order_t *orders = calloc(threads, sizeof *orders);
    pthread_t thread;
    for (int t = 0; t < threads; t++) {
        orders[t] = (order_t){arguments[1], arguments[2], arguments[3], atoi(arguments[4]),
                              atoi(arguments[5]), threads, t};
        if (pthread_create(&thread, NULL, copy, &orders[t]))
            end("no thread");
    }
    pthread_join(thread, NULL);
    return 1;
}
