/* Kafka records into Arrow buffers and back, without a Python object per record.
 *
 * Plain C, without Python's or librdkafka's headers: `connectors/kafka/native/library.py` calls it
 * by ctypes, which lets go of Python's lock meanwhile. librdkafka is the one that confluent-kafka
 * has already loaded; its functions are looked up there. All that is copied here of its declarations
 * belongs to its public, stable interface (rdkafka.h).
 *
 * The caller owns every array and has made it large enough; nothing here keeps a pointer to one.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

/* --- what rdkafka.h declares ----------------------------------------------------------------- */

typedef struct rd_kafka_s rd_kafka_t;
typedef struct rd_kafka_topic_s rd_kafka_topic_t;
typedef struct rd_kafka_queue_s rd_kafka_queue_t;
typedef struct rd_kafka_headers_s rd_kafka_headers_t;
typedef struct rd_kafka_op_s rd_kafka_event_t;
typedef struct rd_kafka_message_s {
    int err;
    rd_kafka_topic_t *rkt;
    int32_t partition;
    void *payload;
    size_t len;
    void *key;
    size_t key_len;
    int64_t offset;
    void *private_;
} message_t;
typedef struct {
    char *topic;
    int partition_cnt;
    void *partitions;
    int err;
} metadata_topic_t;
typedef struct {
    int broker_cnt;
    void *brokers;
    int topic_cnt;
    metadata_topic_t *topics;
    int32_t orig_broker_id;
    char *orig_broker_name;
} metadata_t;

enum { V_END, V_TOPIC, V_RKT, V_PARTITION, V_VALUE, V_KEY, V_OPAQUE, V_MSGFLAGS, V_TIMESTAMP,
       V_HEADER, V_HEADERS };
enum { F_COPY = 0x2, ERR_FAIL = -196, ERR_INVALID_ARG = -186, ERR_NOENT = -156,
       ERR_DIFFERENT_RECORD = -138 };

#define FUNCTIONS(X)                                                                            \
    X(ptrdiff_t, consume_batch_queue, (rd_kafka_queue_t *, int, message_t **, size_t))          \
    X(void, message_destroy, (message_t *))                                                     \
    X(const char *, message_errstr, (const message_t *))                                        \
    X(const char *, message_produce_errstr, (const message_t *))                                \
    X(int64_t, message_timestamp, (const message_t *, int *))                                   \
    X(int, message_headers, (const message_t *, rd_kafka_headers_t **))                         \
    X(size_t, header_cnt, (const rd_kafka_headers_t *))                                         \
    X(int, header_get_all, (const rd_kafka_headers_t *, size_t, const char **, const void **,   \
                            size_t *))                                                          \
    X(rd_kafka_headers_t *, headers_new, (size_t))                                              \
    X(void, headers_destroy, (rd_kafka_headers_t *))                                            \
    X(int, header_add, (rd_kafka_headers_t *, const char *, ptrdiff_t, const void *, ptrdiff_t))\
    X(const char *, topic_name, (const rd_kafka_topic_t *))                                     \
    X(rd_kafka_topic_t *, topic_new, (rd_kafka_t *, const char *, void *))                      \
    X(void, topic_destroy, (rd_kafka_topic_t *))                                                \
    X(size_t, event_message_array, (rd_kafka_event_t *, const message_t **, size_t))            \
    X(int, metadata, (rd_kafka_t *, int, rd_kafka_topic_t *, const metadata_t **, int))         \
    X(void, metadata_destroy, (const metadata_t *))                                             \
    X(int, last_error, (void))                                                                  \
    X(int, producev, (rd_kafka_t *, ...))

#define DECLARE(result, name, arguments) static result(*name##_) arguments;
FUNCTIONS(DECLARE)
#undef DECLARE

/* Look the functions up in the librdkafka at `path`, which must be loaded already: a second one
 * beside it would know nothing of the first one's clients. NULL, or what is missing. */
EXPORT const char *sluice_bind(const char *path) {
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return "the library itself";
#define BIND(result, name, arguments)                                                           \
    *(void **)&name##_ = dlsym(library, "rd_kafka_" #name);                                     \
    if (!name##_)                                                                               \
        return "rd_kafka_" #name;
    FUNCTIONS(BIND)
#undef BIND
    return NULL;
}

/* How many partitions a topic has; 0 when that is not known, with an error or without. */
EXPORT int64_t sluice_partitions(rd_kafka_t *client, const char *name, int timeout_ms,
                                 int32_t *error) {
    const metadata_t *found;
    int64_t count = 0;
    rd_kafka_topic_t *topic = topic_new_(client, name, NULL);
    *error = topic ? metadata_(client, 0, topic, &found, timeout_ms) : last_error_();
    if (topic)
        topic_destroy_(topic);
    if (*error)
        return 0;
    for (int t = 0; t < found->topic_cnt; t++)
        if (!strcmp(found->topics[t].topic, name))
            count = found->topics[t].partition_cnt;
    metadata_destroy_(found);
    return count;
}

/* --- reading --------------------------------------------------------------------------------- */

/* `held` counts the messages that have not come back; here, for the caller may be interrupted
 * before it sees what was returned. */
EXPORT int64_t sluice_consume(rd_kafka_queue_t *queue, int timeout_ms, message_t **messages,
                              int64_t most, int64_t *held) {
    int64_t count = consume_batch_queue_(queue, timeout_ms, messages, (size_t)most);
    if (count > 0)
        *held += count;
    return count;
}

EXPORT void sluice_destroy(message_t **messages, int64_t count, int64_t *held) {
    for (int64_t i = 0; i < count; i++)
        message_destroy_(messages[i]);
    *held -= count;
}

/* The slots by topic and partition: that of partition p of topic t is slot_of[bases[t] + p], for
 * p below partitions[t]; -1 where there is none. */
typedef struct {
    int32_t topics;
    const char *const *names;
    const int32_t *bases;
    const int32_t *partitions;
    const int32_t *slot_of;
} slots_t;

static int32_t topic_index(const slots_t *slots, const rd_kafka_topic_t *topic) {
    const char *name = topic ? topic_name_(topic) : NULL;
    for (int32_t t = 0; name && t < slots->topics; t++)
        if (!strcmp(slots->names[t], name))
            return t;
    return -1;
}

/* One row per message. Lengths are -1 for null; `headers` may be NULL, else it gets for each
 * message its number of headers, the bytes of their names, and the bytes of their values; a number
 * of -1 says that it has headers which librdkafka does not take apart. */
typedef struct {
    int32_t *errors;
    int32_t *slots;
    int64_t *offsets;
    int64_t *key_lengths;
    int64_t *value_lengths;
    int64_t *timestamps_ms;
    int32_t *timestamp_types;
    int64_t *headers;
} rows_t;

static void measure_headers(const message_t *message, int64_t *sizes) {
    rd_kafka_headers_t *headers;
    sizes[0] = sizes[1] = sizes[2] = 0;
    if (message->err)
        return;
    int error = message_headers_(message, &headers);
    if (error) {
        sizes[0] = error == ERR_NOENT ? 0 : -1;
        return;
    }
    const char *name;
    const void *value;
    size_t length;
    for (size_t h = 0; !header_get_all_(headers, h, &name, &value, &length); h++) {
        sizes[0]++;
        sizes[1] += (int64_t)strlen(name);
        sizes[2] += value ? (int64_t)length : 0;
    }
}

EXPORT void sluice_describe(message_t *const *messages, int64_t count, const slots_t *slots,
                            rows_t *rows) {
    const rd_kafka_topic_t *last = NULL;
    int32_t topic = -1;
    for (int64_t i = 0; i < count; i++) {
        const message_t *message = messages[i];
        if (!i || message->rkt != last) {
            last = message->rkt;
            topic = topic_index(slots, last);
        }
        int32_t p = message->partition;
        int known = topic >= 0 && p >= 0 && p < slots->partitions[topic];
        rows->errors[i] = message->err;
        rows->slots[i] = known ? slots->slot_of[slots->bases[topic] + p] : -1;
        rows->offsets[i] = message->offset;
        rows->key_lengths[i] = message->key ? (int64_t)message->key_len : -1;
        rows->value_lengths[i] = message->payload ? (int64_t)message->len : -1;
        int kind = 0;
        rows->timestamps_ms[i] = message->err ? -1 : message_timestamp_(message, &kind);
        rows->timestamp_types[i] = kind;
        if (rows->headers)
            measure_headers(message, rows->headers + 3 * i);
    }
}

EXPORT const char *sluice_errstr(const message_t *message) { return message_errstr_(message); }

static void mark_valid(uint8_t *validity, int64_t row) {
    validity[row >> 3] |= (uint8_t)(1u << (row & 7));
}

/* Arrow's binary column of the keys or values. `validity` comes zeroed; or NULL: nothing is null.
 */
EXPORT void sluice_copy(message_t *const *messages, int64_t count, int is_key, int32_t *offsets,
                        uint8_t *validity, uint8_t *data) {
    int32_t at = 0;
    for (int64_t i = 0; i < count; i++) {
        const message_t *message = messages[i];
        const void *bytes = is_key ? message->key : message->payload;
        size_t length = is_key ? message->key_len : message->len;
        offsets[i] = at;
        if (!bytes)
            continue;
        if (validity)
            mark_valid(validity, i);
        if (length)
            memcpy(data + at, bytes, length);
        at += (int32_t)length;
    }
    offsets[count] = at;
}

/* The buffers of Arrow's list<struct<string, binary>>; both validities come zeroed. */
typedef struct {
    int32_t *list_offsets;
    uint8_t *list_validity;
    int32_t *name_offsets;
    uint8_t *names;
    int32_t *value_offsets;
    uint8_t *value_validity;
    uint8_t *values;
} headers_t;

/* Whether all names are ASCII: others must be looked at before they are called strings. */
EXPORT int sluice_copy_headers(message_t *const *messages, int64_t count, headers_t *to) {
    int32_t entry = 0, name_at = 0, value_at = 0;
    uint8_t seen = 0;
    for (int64_t i = 0; i < count; i++) {
        to->list_offsets[i] = entry;
        rd_kafka_headers_t *headers;
        const char *name;
        const void *value;
        size_t length;
        if (message_headers_(messages[i], &headers) || !header_cnt_(headers))
            continue;
        mark_valid(to->list_validity, i);
        for (size_t h = 0; !header_get_all_(headers, h, &name, &value, &length); h++, entry++) {
            to->name_offsets[entry] = name_at;
            to->value_offsets[entry] = value_at;
            for (; *name; name++) {
                seen |= (uint8_t)*name;
                to->names[name_at++] = (uint8_t)*name;
            }
            if (!value)
                continue;
            mark_valid(to->value_validity, entry);
            if (length)
                memcpy(to->values + value_at, value, length);
            value_at += (int32_t)length;
        }
    }
    to->list_offsets[count] = entry;
    to->name_offsets[entry] = name_at;
    to->value_offsets[entry] = value_at;
    return seen < 0x80;
}

/* --- writing --------------------------------------------------------------------------------- */

/* Arrow's large_binary; `validity` may be NULL; `data` is not, whatever it holds. */
typedef struct {
    const uint8_t *validity;
    int64_t first_bit;
    const int64_t *offsets;
    const uint8_t *data;
} bytes_t;

/* Of a batch; a pointer that is NULL leaves the column out. `topics` are handles; row i goes to
 * topics[topic_of[i]], or to topics[0]. The headers of row i are entries header_bounds[i] to
 * header_bounds[i + 1]. */
typedef struct {
    rd_kafka_topic_t *const *topics;
    const int32_t *topic_of;
    const bytes_t *keys;
    const bytes_t *values;
    const int32_t *partitions;
    const int64_t *timestamps_ms;
    const int64_t *header_bounds;
    const bytes_t *header_names;
    const bytes_t *header_values;
} columns_t;

static const void *bytes_at(const bytes_t *column, int64_t row, size_t *length) {
    *length = 0;
    if (!column)
        return NULL;
    int64_t bit = column->first_bit + row;
    if (column->validity && !(column->validity[bit >> 3] >> (bit & 7) & 1))
        return NULL;
    *length = (size_t)(column->offsets[row + 1] - column->offsets[row]);
    return column->data + column->offsets[row];
}

static rd_kafka_headers_t *headers_at(const columns_t *from, int64_t row) {
    int64_t first = from->header_bounds[row], end = from->header_bounds[row + 1];
    rd_kafka_headers_t *headers = headers_new_((size_t)(end - first));
    for (int64_t entry = first; headers && entry < end; entry++) {
        size_t name_length, length;
        const void *name = bytes_at(from->header_names, entry, &name_length);
        const void *value = bytes_at(from->header_values, entry, &length);
        if (header_add_(headers, name, (ptrdiff_t)name_length, value, (ptrdiff_t)length)) {
            headers_destroy_(headers);
            return NULL;
        }
    }
    return headers;
}

/* `tag` comes back with the record's delivery report. */
static int produce_row(rd_kafka_t *client, const columns_t *from, int64_t row, int64_t tag) {
    rd_kafka_topic_t *topic = from->topics[from->topic_of ? from->topic_of[row] : 0];
    if (!topic)
        return ERR_INVALID_ARG;
    size_t key_length, value_length;
    const void *key = bytes_at(from->keys, row, &key_length);
    const void *value = bytes_at(from->values, row, &value_length);
    int partition = from->partitions ? from->partitions[row] : -1;
    int64_t stamp_ms = from->timestamps_ms ? from->timestamps_ms[row] : 0;
    rd_kafka_headers_t *headers = NULL;
    if (from->header_bounds && from->header_bounds[row] < from->header_bounds[row + 1]) {
        headers = headers_at(from, row);
        if (!headers)
            return ERR_FAIL;
    }
    int error = producev_(client, V_MSGFLAGS, (int)F_COPY, V_RKT, topic, V_PARTITION, partition,
                          V_KEY, key, key_length, V_VALUE, value, value_length,
                          V_TIMESTAMP, stamp_ms, V_OPAQUE, (void *)(intptr_t)tag,
                          V_HEADERS, headers, (int)V_END);
    if (error && headers) /* else they belong to the record */
        headers_destroy_(headers);
    return error;
}

EXPORT rd_kafka_topic_t *sluice_topic(rd_kafka_t *client, const char *name) {
    return topic_new_(client, name, NULL);
}

EXPORT void sluice_topic_destroy(rd_kafka_topic_t *topic) { topic_destroy_(topic); }

/* Queue rows `first` to `end`, in order, up to the first that is not taken; how many were. Row i
 * has the tag `tag` + i. */
EXPORT int64_t sluice_produce(rd_kafka_t *client, const columns_t *from, int64_t tag,
                              int64_t first, int64_t end, int32_t *error) {
    *error = 0;
    for (int64_t row = first; row < end; row++) {
        *error = produce_row(client, from, row, tag + row);
        if (*error)
            return row - first;
    }
    return end - first;
}

/* Whether the broker has named another record of the batch. If it names a single one, librdkafka
 * gives its code to all, but a text of their own to the others. That text is a constant of the
 * library. The other texts may have been freed, and are not read. */
static int is_innocent(const message_t *message) {
    static __thread const char *known;
    const char *text = message->err ? message_produce_errstr_(message) : NULL;
    Dl_info found;
    if (!text || text == known)
        return text != NULL;
    if (!dladdr(text, &found))
        return 0;
    known = text;
    return 1;
}

/* The reports of an event, each once; how many, at most `most`. Zero: there are no more. */
EXPORT int64_t sluice_reports(rd_kafka_event_t *event, const message_t **messages, int64_t most,
                              int32_t *errors, int64_t *tags, int64_t *sizes,
                              int32_t *partitions) {
    int64_t count = (int64_t)event_message_array_(event, messages, (size_t)most);
    for (int64_t i = 0; i < count; i++) {
        errors[i] = is_innocent(messages[i]) ? ERR_DIFFERENT_RECORD : messages[i]->err;
        tags[i] = (int64_t)(intptr_t)messages[i]->private_;
        sizes[i] = (int64_t)(messages[i]->len + messages[i]->key_len);
        partitions[i] = messages[i]->partition;
    }
    return count;
}

EXPORT const char *sluice_topic_of(const message_t *message) {
    return message->rkt ? topic_name_(message->rkt) : NULL;
}
