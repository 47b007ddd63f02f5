/* rig: the two ends of a speed measurement, a Kafka node that costs nothing and a client that counts.
 *
 *   rig backend --port P [--answer-bytes N] [--cpu N]
 *   rig load    --target HOST:PORT --api produce|fetch --size BYTES --connections C --depth D
 *               --seconds S [--warmup S] [--client-id ID] [--cpu N]
 *   rig accept  --target HOST:PORT --connections C --seconds S [--client-id ID] [--cpu N]
 *   rig idle    --target HOST:PORT --connections N [--client-id ID]      holds them until stdin ends
 *
 * Each mode is one thread on level-triggered epoll and prints one line of JSON on stdout (backend and idle: when
 * they are ready). Anything that is not as it must be (an answer out of order, of the wrong size, with an error code;
 * a lost connection; ten seconds without an answer) ends the process with status 1 and a line on stderr.
 *
 * SIZE is the length of the `records` field: a produce frame is some 50 bytes longer. Record bytes are zeros and are
 * discarded unread (MSG_TRUNC), so that neither end is the limit of what is measured between them.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum {
    PRODUCE = 0, FETCH = 1, METADATA = 3, API_VERSIONS = 18, INIT_PRODUCER_ID = 22,
    BUFFER_BYTES = 64 << 10,
    HEAD_BYTES = 1 << 10,     /* of a frame larger than the buffer, this much is looked at */
    ANSWER_HEAD_BYTES = 64,   /* of an answer, this much is looked at: all of a Produce v7 answer */
    ROOM_BYTES = 4 << 10,     /* no answer of ours but Metadata is larger, and that one is checked */
    ZEROS_BYTES = 1 << 20,
    ZEROS_PIECES = 16,
    EVENTS = 256,
    PATIENCE_S = 10,
};
static const char TOPIC[] = "bench";
static uint8_t *zeros;

static struct {
    int port, connections, depth, cpu, api;
    long long size, answer_bytes;
    double seconds, warmup;
    struct sockaddr_in target;
    const char *client_id;
} option = {.connections = 1, .depth = 1, .cpu = -1, .api = PRODUCE, .size = 100, .answer_bytes = -1,
            .seconds = 3, .client_id = "rig"};

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("rig: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(1);
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* ---- Kafka's primitive types -------------------------------------------------------------------------------- */

typedef struct { uint8_t *at, *end; } Writer;

static void put(Writer *w, uint64_t value, int bytes) {
    if (w->end - w->at < bytes) die("an answer outgrew its buffer");
    for (int i = bytes - 1; i >= 0; i--, value >>= 8) w->at[i] = (uint8_t)value;
    w->at += bytes;
}

static void put_bytes(Writer *w, const void *bytes, size_t length) {
    if ((size_t)(w->end - w->at) < length) die("an answer outgrew its buffer");
    memcpy(w->at, bytes, length);
    w->at += length;
}

static void put_varint(Writer *w, uint32_t value) {
    for (; value >= 128; value >>= 7) put(w, (value & 127) | 128, 1);
    put(w, value, 1);
}

static void put_string(Writer *w, const void *bytes, size_t length, bool compact) {
    if (compact) put_varint(w, (uint32_t)length + 1);
    else put(w, length, 2);
    put_bytes(w, bytes, length);
}

static void put_count(Writer *w, uint32_t count, bool compact) {
    if (compact) put_varint(w, count + 1);
    else put(w, count, 4);
}

static void put_tags(Writer *w, bool flexible) {
    if (flexible) put(w, 0, 1);
}

/* A cursor over one frame. Past the end it turns `bad` and yields zeros. */
typedef struct { const uint8_t *at, *end; bool bad; } Reader;
typedef struct { const uint8_t *bytes; int length; } Text; /* length -1: null */

static int64_t get(Reader *r, int bytes) {
    if (r->bad || r->end - r->at < bytes) {
        r->bad = true;
        return 0;
    }
    uint64_t value = (r->at[0] & 128) ? UINT64_MAX : 0;
    for (int i = 0; i < bytes; i++) value = value << 8 | *r->at++;
    return (int64_t)value;
}

static uint32_t get_varint(Reader *r) {
    uint32_t value = 0;
    for (int shift = 0; shift < 35; shift += 7) {
        uint32_t byte = (uint32_t)get(r, 1) & 255;
        value |= (byte & 127) << shift;
        if (byte < 128) return value;
    }
    r->bad = true;
    return 0;
}

static void skip(Reader *r, int64_t bytes) {
    if (bytes < 0 || r->end - r->at < bytes) r->bad = true;
    else r->at += bytes;
}

static int get_count(Reader *r, bool compact) { return compact ? (int)get_varint(r) - 1 : (int)get(r, 4); }

static Text get_string(Reader *r, bool compact) {
    int length = compact ? (int)get_varint(r) - 1 : (int)get(r, 2);
    Text text = {r->at, length};
    if (length >= 0) skip(r, length);
    return text;
}

static void skip_tags(Reader *r, bool flexible) {
    if (!flexible) return;
    for (uint32_t count = get_varint(r); count && !r->bad; count--) {
        get_varint(r);
        skip(r, get_varint(r));
    }
}

/* ---- sockets ------------------------------------------------------------------------------------------------ */

/* One connection of either end. What goes out is `out`, then `out_zeros` zeros; nothing more is made before both
 * are gone, so a peer that does not read holds us up as it would a broker, and memory stays what it is. */
typedef struct {
    int fd, epoll;
    bool waits_for_room;      /* EPOLLOUT is asked for */
    uint32_t reads_while_blocked; /* EPOLLIN of a client; 0 of the backend, which would spin on what it leaves unread */
    uint8_t *in, *out;
    size_t in_bytes, out_bytes, out_sent;
    int64_t out_zeros, discard; /* still to send; still to come of a frame that has been dealt with */
    /* load only */
    int may_send, oldest, in_flight;
    int32_t next_correlation_id;
    int64_t *sent_ns;         /* ring of `depth` */
} Connection;

static Connection *open_connection(int epoll, int fd) {
    Connection *c = calloc(1, sizeof *c);
    *c = (Connection){.fd = fd, .epoll = epoll, .in = malloc(BUFFER_BYTES), .out = malloc(BUFFER_BYTES)};
    if (!c->in || !c->out) die("out of memory");
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event)) die("epoll_ctl: %s", strerror(errno));
    return c;
}

static void close_connection(Connection *c) {
    close(c->fd);
    free(c->in);
    free(c->out);
    free(c->sent_ns);
    free(c);
}

/* Write what there is. 1: all gone, 0: the kernel is full (EPOLLOUT is asked for), -1: the connection is lost. */
static int flush(Connection *c) {
    while (c->out_sent < c->out_bytes || c->out_zeros) {
        struct iovec pieces[1 + ZEROS_PIECES];
        int count = 0;
        size_t head = c->out_bytes - c->out_sent;
        if (head) pieces[count++] = (struct iovec){c->out + c->out_sent, head};
        for (int64_t left = c->out_zeros; left && count <= ZEROS_PIECES; left -= (int64_t)pieces[count++].iov_len)
            pieces[count] = (struct iovec){zeros, (size_t)(left < ZEROS_BYTES ? left : ZEROS_BYTES)};
        ssize_t sent = count == 1 ? send(c->fd, pieces[0].iov_base, pieces[0].iov_len, 0) : writev(c->fd, pieces, count);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0 && errno != EAGAIN) return -1;
        if (sent < 0) {
            if (!c->waits_for_room) {
                struct epoll_event event = {.events = c->reads_while_blocked | EPOLLOUT, .data.ptr = c};
                epoll_ctl(c->epoll, EPOLL_CTL_MOD, c->fd, &event);
                c->waits_for_room = true;
            }
            return 0;
        }
        size_t of_head = (size_t)sent < head ? (size_t)sent : head;
        c->out_sent += of_head;
        c->out_zeros -= sent - (ssize_t)of_head;
    }
    c->out_bytes = c->out_sent = 0;
    if (c->waits_for_room) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
        epoll_ctl(c->epoll, EPOLL_CTL_MOD, c->fd, &event);
        c->waits_for_room = false;
    }
    return 1;
}

/* Drop from the kernel what is left of a frame. 1: all dropped, 0: more is to come, -1: lost. */
static int discard(Connection *c) {
    while (c->discard) {
        ssize_t got = recv(c->fd, NULL, (size_t)(c->discard < 1 << 30 ? c->discard : 1 << 30), MSG_TRUNC);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0 && errno == EAGAIN) return 0;
        if (got <= 0) return -1;
        c->discard -= got;
    }
    return 1;
}

/* Fill the buffer once. 1: got some, 0: nothing there, -1: lost or ended. */
static int fill(Connection *c) {
    for (;;) {
        ssize_t got = recv(c->fd, c->in + c->in_bytes, BUFFER_BYTES - c->in_bytes, 0);
        if (got > 0) {
            c->in_bytes += (size_t)got;
            return 1;
        }
        if (got < 0 && errno == EINTR) continue;
        return got < 0 && errno == EAGAIN ? 0 : -1;
    }
}

static uint32_t frame_bytes(const uint8_t *frame) {
    uint32_t size;
    memcpy(&size, frame, 4);
    return ntohl(size) + 4;
}

/* ---- backend ------------------------------------------------------------------------------------------------ */

static const int16_t SERVED[][3] = {
    {PRODUCE, 0, 11}, {FETCH, 4, 11}, {METADATA, 0, 8}, {API_VERSIONS, 0, 4}, {INIT_PRODUCER_ID, 0, 1},
};
enum { SERVED_APIS = sizeof SERVED / sizeof *SERVED };

static bool serves(int api, int version) {
    for (int i = 0; i < SERVED_APIS; i++)
        if (SERVED[i][0] == api) return version >= SERVED[i][1] && version <= SERVED[i][2];
    return false;
}

static void answer_api_versions(Writer *w, int version) {
    bool known = version <= 4, flexible = known && version >= 3;
    put(w, known ? 0 : 35, 2);
    put_count(w, SERVED_APIS, flexible);
    for (int i = 0; i < SERVED_APIS; i++) {
        for (int field = 0; field < 3; field++) put(w, (uint16_t)SERVED[i][field], 2);
        put_tags(w, flexible);
    }
    if (known && version >= 1) put(w, 0, 4);
    put_tags(w, flexible);
}

static void put_topic_metadata(Writer *w, Text name, int version) {
    put(w, 0, 2);
    put_string(w, name.bytes, (size_t)name.length, false);
    if (version >= 1) put(w, 0, 1);
    put(w, 1, 4);                                  /* one partition */
    put(w, 0, 2);
    put(w, 0, 4);
    put(w, 1, 4);                                  /* led by node 1 */
    if (version >= 7) put(w, 0, 4);
    for (int list = 0; list < 2; list++) put(w, 1, 4), put(w, 1, 4);
    if (version >= 5) put(w, 0, 4);
    if (version >= 8) put(w, 0x80000000u, 4);
}

static void answer_metadata(Writer *w, Reader *r, int version) {
    static const char HOST[] = "127.0.0.1", CLUSTER[] = "rig";
    if (version >= 3) put(w, 0, 4);
    put(w, 1, 4);
    put(w, 1, 4);
    put_string(w, HOST, sizeof HOST - 1, false);
    put(w, (uint32_t)option.port, 4);
    if (version >= 1) put(w, 0xffff, 2);
    if (version >= 2) put_string(w, CLUSTER, sizeof CLUSTER - 1, false);
    if (version >= 1) put(w, 1, 4);
    int topics = get_count(r, false);
    bool all = topics < 0 || (version == 0 && topics == 0);
    put(w, all ? 1 : (uint32_t)topics, 4);
    if (all) put_topic_metadata(w, (Text){(const uint8_t *)TOPIC, sizeof TOPIC - 1}, version);
    for (int i = 0; !all && i < topics && !r->bad; i++) {
        Text name = get_string(r, false);
        if (r->bad || name.length < 0) r->bad = true;
        else put_topic_metadata(w, name, version);
    }
    if (version >= 8) put(w, 0x80000000u, 4);
}

/* Returns whether there is an answer: not with acks=0. One topic with one partition is what our Metadata leads to. */
static bool answer_produce(Writer *w, Reader *r, int version) {
    bool flexible = version >= 9;
    if (version >= 3) get_string(r, flexible);
    int acks = (int)get(r, 2);
    get(r, 4);
    int topics = get_count(r, flexible);
    Text name = get_string(r, flexible);
    int partitions = get_count(r, flexible);
    int64_t partition = get(r, 4);
    if (topics != 1 || partitions != 1 || name.length < 0) r->bad = true;
    if (r->bad || acks == 0) return false;
    put_tags(w, flexible);
    put_count(w, 1, flexible);
    put_string(w, name.bytes, (size_t)name.length, flexible);
    put_count(w, 1, flexible);
    put(w, (uint64_t)partition, 4);
    put(w, 0, 2);
    put(w, 0, 8);
    if (version >= 2) put(w, UINT64_MAX, 8);
    if (version >= 5) put(w, 0, 8);
    if (version >= 8) {
        put_count(w, 0, flexible);
        if (flexible) put(w, 0, 1);
        else put(w, 0xffff, 2);
    }
    put_tags(w, flexible);
    put_tags(w, flexible);
    if (version >= 1) put(w, 0, 4);
    put_tags(w, flexible);
    return true;
}

/* Returns the length of the records that follow the written head. Asks of more than one partition are refused. */
static int64_t answer_fetch(Writer *w, Reader *r, int version) {
    get(r, 4);
    get(r, 4);
    get(r, 4);
    int64_t records = get(r, 4);
    get(r, 1);
    if (version >= 7) get(r, 8);
    int topics = get_count(r, false);
    Text name = get_string(r, false);
    int partitions = get_count(r, false);
    int64_t partition = get(r, 4);
    if (version >= 9) get(r, 4);
    int64_t offset = get(r, 8);
    if (version >= 5) get(r, 8);
    int64_t of_partition = get(r, 4);
    if (topics != 1 || partitions != 1 || name.length < 0 || records < 0 || of_partition < 0) r->bad = true;
    if (r->bad) return 0;
    if (of_partition < records) records = of_partition;
    if (option.answer_bytes >= 0 && option.answer_bytes < records) records = option.answer_bytes;
    put(w, 0, 4);
    if (version >= 7) put(w, 0, 2), put(w, 0, 4);
    put(w, 1, 4);
    put_string(w, name.bytes, (size_t)name.length, false);
    put(w, 1, 4);
    put(w, (uint64_t)partition, 4);
    put(w, 0, 2);
    put(w, (uint64_t)offset + 1, 8);
    put(w, (uint64_t)offset + 1, 8);
    if (version >= 5) put(w, 0, 8);
    put(w, UINT32_MAX, 4);                         /* aborted transactions: none */
    if (version >= 11) put(w, UINT32_MAX, 4);
    put(w, (uint64_t)records, 4);
    return records;
}

/* Put the answer to one request into `out`; false: the request is none that we can answer. */
static bool answer(Connection *c, const uint8_t *frame, size_t bytes) {
    Reader r = {frame + 4, frame + bytes, false};
    int api = (int)get(&r, 2), version = (int)get(&r, 2);
    uint32_t correlation_id = (uint32_t)get(&r, 4);
    get_string(&r, false);
    if (r.bad || (api != API_VERSIONS && !serves(api, version))) {
        fprintf(stderr, "rig: no answer to API %d version %d\n", api, version);
        return false;
    }
    skip_tags(&r, api == API_VERSIONS ? version >= 3 : api == PRODUCE && version >= 9);
    uint8_t *start = c->out + c->out_bytes;
    Writer w = {start, c->out + BUFFER_BYTES};
    put(&w, 0, 4);
    put(&w, correlation_id, 4);
    bool answers = true;
    switch (api) {
        case PRODUCE: answers = answer_produce(&w, &r, version); break;
        case FETCH: c->out_zeros = answer_fetch(&w, &r, version); break;
        case METADATA: answer_metadata(&w, &r, version); break;
        case API_VERSIONS: answer_api_versions(&w, version); break;
        case INIT_PRODUCER_ID: put(&w, 0, 4), put(&w, 0, 2), put(&w, 1000, 8), put(&w, 0, 2); break;
    }
    if (r.bad) {
        fprintf(stderr, "rig: API %d version %d: cannot be read, or is about more than one partition\n", api, version);
        return false;
    }
    if (!answers) return true;
    c->out_bytes += (size_t)(w.at - start);
    put(&(Writer){start, start + 4}, (uint64_t)(w.at - start - 4) + (uint64_t)c->out_zeros, 4);
    return true;
}

/* Answer the frames in `in`, until one is incomplete or the answers made so far must go out first.
 * Returns false to give the connection up. */
static bool answer_frames(Connection *c) {
    size_t at = 0;
    bool fine = true;
    while (c->in_bytes - at >= 4) {
        size_t bytes = frame_bytes(c->in + at), have = c->in_bytes - at;
        if (bytes < 14) return false;
        bool whole = have >= bytes, head = bytes > BUFFER_BYTES && have >= HEAD_BYTES;
        if (!whole && !head) break;
        /* Of a frame that is still coming the answer must wait, and must not hold up those before it. */
        if (c->out_zeros || BUFFER_BYTES - c->out_bytes < ROOM_BYTES || (!whole && c->out_bytes)) break;
        if (!(fine = answer(c, c->in + at, whole ? bytes : have))) break;
        c->discard = whole ? 0 : (int64_t)(bytes - have);
        at += whole ? bytes : have;
        if (!whole) break;
    }
    memmove(c->in, c->in + at, c->in_bytes - at);
    c->in_bytes -= at;
    return fine;
}

/* Do all that can be done now on one connection; false: it is over. */
static bool serve(Connection *c) {
    for (bool drained = false;;) {
        int discarded = discard(c);
        if (discarded <= 0) return discarded == 0;
        int flushed = flush(c);
        if (flushed <= 0) return flushed == 0;
        if (!answer_frames(c)) return false;
        if (c->discard || c->out_bytes) continue;
        if (drained) return true;
        int filled = fill(c);
        if (filled <= 0) return filled == 0;
        drained = c->in_bytes < BUFFER_BYTES;
    }
}

static void run_backend(void) {
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), on = 1, epoll = epoll_create1(0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)option.port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 4096))
        die("port %d: %s", option.port, strerror(errno));
    struct epoll_event event = {.events = EPOLLIN}, events[EVENTS];
    epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
    printf("{\"port\": %d}\n", option.port);
    fflush(stdout);
    for (;;) {
        int ready = epoll_wait(epoll, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            Connection *c = events[i].data.ptr;
            if (c && !serve(c)) close_connection(c);
            for (int fd; !c && (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) open_connection(epoll, fd);
        }
    }
}

/* ---- clients ------------------------------------------------------------------------------------------------ */

static void put_header(Writer *w, int api, int version, int32_t correlation_id) {
    put(w, 0, 4);
    put(w, (uint64_t)api, 2);
    put(w, (uint64_t)version, 2);
    put(w, (uint32_t)correlation_id, 4);
    put_string(w, option.client_id, strlen(option.client_id), false);
}

static size_t api_versions_request(uint8_t *frame, size_t room) {
    Writer w = {frame, frame + room};
    put_header(&w, API_VERSIONS, 3, 0);
    put_tags(&w, true);
    put_string(&w, "rig", 3, true);
    put_string(&w, "1", 1, true);
    put_tags(&w, true);
    put(&(Writer){frame, frame + 4}, (uint64_t)(w.at - frame - 4), 4);
    return (size_t)(w.at - frame);
}

/* Write what comes before the records of a Produce v7 (acks=1) and return its length; the frame is SIZE longer. */
static size_t produce_request(uint8_t *frame, size_t room) {
    Writer w = {frame, frame + room};
    put_header(&w, PRODUCE, 7, 0);
    put(&w, 0xffff, 2);
    put(&w, 1, 2);
    put(&w, 30000, 4);
    put(&w, 1, 4);
    put_string(&w, TOPIC, sizeof TOPIC - 1, false);
    put(&w, 1, 4);
    put(&w, 0, 4);
    put(&w, (uint64_t)option.size, 4);
    put(&(Writer){frame, frame + 4}, (uint64_t)(w.at - frame - 4 + option.size), 4);
    return (size_t)(w.at - frame);
}

static size_t fetch_request(uint8_t *frame, size_t room) {
    Writer w = {frame, frame + room};
    put_header(&w, FETCH, 11, 0);
    put(&w, UINT32_MAX, 4);
    put(&w, 500, 4);
    put(&w, 1, 4);
    put(&w, (uint64_t)option.size, 4);
    put(&w, 0, 1);
    put(&w, 0, 4);
    put(&w, UINT32_MAX, 4);                        /* no fetch session */
    put(&w, 1, 4);
    put_string(&w, TOPIC, sizeof TOPIC - 1, false);
    put(&w, 1, 4);
    put(&w, 0, 4);
    put(&w, UINT32_MAX, 4);
    put(&w, 0, 8);
    put(&w, UINT64_MAX, 8);
    put(&w, (uint64_t)option.size, 4);
    put(&w, 0, 4);
    put(&w, 0, 2);
    put(&(Writer){frame, frame + 4}, (uint64_t)(w.at - frame - 4), 4);
    return (size_t)(w.at - frame);
}

/* A connected socket that has done one ApiVersions exchange; blocking until then, not blocking after. */
static int connected_socket(void) {
    int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    struct timeval patience = {.tv_sec = PATIENCE_S};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (fd < 0 || connect(fd, (struct sockaddr *)&option.target, sizeof option.target))
        die("connect: %s", strerror(errno));
    uint8_t frame[BUFFER_BYTES];
    size_t bytes = api_versions_request(frame, sizeof frame);
    if (write(fd, frame, bytes) != (ssize_t)bytes) die("ApiVersions: %s", strerror(errno));
    if (recv(fd, frame, 4, MSG_WAITALL) != 4) die("no answer to ApiVersions");
    bytes = frame_bytes(frame) - 4;
    if (bytes < 6 || bytes > sizeof frame || recv(fd, frame, bytes, MSG_WAITALL) != (ssize_t)bytes)
        die("ApiVersions: a broken answer");
    if (memcmp(frame, "\0\0\0\0\0", 6)) die("ApiVersions: an error or a wrong correlation id");
    fcntl(fd, F_SETFL, O_NONBLOCK);
    return fd;
}

/* The answers counted since warm-up. Latencies: one bucket per microsecond, the last for a second and more. */
enum { LATENCY_BUCKETS = 1000001 };
static struct {
    uint32_t *latency_us;
    int64_t answers, answers_in_all, throttled, max_ns, last_answer_ns;
    int32_t max_throttle_time_ms;
    bool draining;             /* the time is over: no more requests, no more counting, but every answer must come */
} seen;

static int64_t percentile_us(double share) {
    int64_t rank = (int64_t)(share * (double)seen.answers), below = 0;
    for (int us = 0; us < LATENCY_BUCKETS; us++)
        if ((below += seen.latency_us[us]) > rank) return us;
    return 0;
}

static double cpu_seconds(void) {
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return (double)(use.ru_utime.tv_sec + use.ru_stime.tv_sec) + (double)(use.ru_utime.tv_usec + use.ru_stime.tv_usec) / 1e6;
}

static uint8_t request_head[BUFFER_BYTES];
static size_t request_head_bytes;
static int64_t request_zeros;   /* what of the request is too large to be copied */
static uint32_t answer_bytes_expected;

static void prepare_request(void) {
    memset(request_head, 0, sizeof request_head);
    if (option.api == FETCH) {
        request_head_bytes = fetch_request(request_head, HEAD_BYTES);
        answer_bytes_expected = 8 + 4 + 2 + 4 + 4 + 2 + sizeof TOPIC - 1 + 4 + 4 + 2 + 24 + 4 + 4 + 4 + (uint32_t)option.size;
        return;
    }
    request_head_bytes = produce_request(request_head, HEAD_BYTES);
    if (option.size <= HEAD_BYTES) request_head_bytes += (size_t)option.size;
    else request_zeros = option.size;
    answer_bytes_expected = 8 + 4 + 2 + sizeof TOPIC - 1 + 4 + 4 + 2 + 24 + 4;
}

static void send_requests(Connection *c, int64_t now) {
    while (c->may_send && !seen.draining) {
        while (c->may_send && !c->out_zeros && BUFFER_BYTES - c->out_bytes >= request_head_bytes) {
            uint8_t *frame = c->out + c->out_bytes;
            memcpy(frame, request_head, request_head_bytes);
            put(&(Writer){frame + 8, frame + 12}, (uint32_t)c->next_correlation_id++, 4);
            c->out_bytes += request_head_bytes;
            c->out_zeros = request_zeros;
            c->sent_ns[(c->oldest + c->in_flight++) % option.depth] = now;
            c->may_send--;
        }
        int flushed = flush(c);
        if (flushed < 0) die("a connection was lost while sending: %s", strerror(errno));
        if (!flushed) return;
    }
}

static void count_answer(Connection *c, int64_t now) {
    int64_t took = now - c->sent_ns[c->oldest];
    c->oldest = (c->oldest + 1) % option.depth;
    c->in_flight--;
    c->may_send++;
    seen.answers_in_all++;
    seen.last_answer_ns = now;
    if (seen.draining) return;
    seen.answers++;
    if (took > seen.max_ns) seen.max_ns = took;
    seen.latency_us[took / 1000 < LATENCY_BUCKETS ? took / 1000 : LATENCY_BUCKETS - 1]++;
}

/* Look at the head of an answer: id, size, error code, throttle. */
static void check_answer(const Connection *c, uint8_t *frame) {
    if (!c->in_flight) die("an answer to nothing");
    int32_t expected = c->next_correlation_id - c->in_flight;
    uint32_t bytes = frame_bytes(frame);
    Reader r = {frame + 4, frame + (bytes < ANSWER_HEAD_BYTES ? bytes : ANSWER_HEAD_BYTES), false};
    int32_t correlation_id = (int32_t)get(&r, 4);
    if (bytes < 8 || correlation_id != expected) die("correlation id %d where %d was due", correlation_id, expected);
    if (bytes != answer_bytes_expected) die("an answer of %u bytes where %u were due", bytes, answer_bytes_expected);
    if (option.api == PRODUCE) skip(&r, 4 + 2 + (int)sizeof TOPIC - 1 + 4 + 4);
    int32_t throttle_time_ms = option.api == FETCH ? (int32_t)get(&r, 4) : 0;
    int error_code = (int)get(&r, 2);
    if (option.api == PRODUCE) {
        skip(&r, 24);
        throttle_time_ms = (int32_t)get(&r, 4);
    }
    if (error_code || r.bad) die("an answer with error code %d", error_code);
    if (throttle_time_ms > 0) seen.throttled++;
    if (throttle_time_ms > seen.max_throttle_time_ms) seen.max_throttle_time_ms = throttle_time_ms;
}

static void read_answers(Connection *c) {
    for (bool drained = false; !drained;) {
        if (c->discard) {
            int discarded = discard(c);
            if (discarded < 0) die("a connection was lost in the middle of an answer");
            if (!discarded) break;
            count_answer(c, now_ns());
        }
        int filled = fill(c);
        if (filled < 0) die("a connection was closed on us");
        if (!filled) break;
        drained = c->in_bytes < BUFFER_BYTES;
        int64_t now = now_ns();
        size_t at = 0;
        while (c->in_bytes - at >= ANSWER_HEAD_BYTES || (c->in_bytes - at >= 4 && c->in_bytes - at >= frame_bytes(c->in + at))) {
            size_t bytes = frame_bytes(c->in + at), have = c->in_bytes - at;
            check_answer(c, c->in + at);
            at += bytes < have ? bytes : have;
            if (bytes > have) {
                c->discard = (int64_t)(bytes - have);
                drained = false;
                break;
            }
            count_answer(c, now);
        }
        memmove(c->in, c->in + at, c->in_bytes - at);
        c->in_bytes -= at;
        if (c->may_send) send_requests(c, now);
    }
    if (c->may_send) send_requests(c, now_ns());
}

static void print_load(double seconds) {
    printf("{\"requests\": %lld, \"requests_in_all\": %lld, \"seconds\": %.4f, \"requests_per_second\": %.1f, "
           "\"megabytes_per_second\": %.2f, \"p50_us\": %lld, \"p99_us\": %lld, \"max_us\": %lld, "
           "\"throttled\": %lld, \"max_throttle_time_ms\": %d, \"cpu_seconds\": %.3f}\n",
           (long long)seen.answers, (long long)seen.answers_in_all, seconds, (double)seen.answers / seconds,
           (double)seen.answers * (double)option.size / 1e6 / seconds, (long long)percentile_us(0.50),
           (long long)percentile_us(0.99), (long long)(seen.max_ns / 1000), (long long)seen.throttled,
           seen.max_throttle_time_ms, cpu_seconds());
}

static void forget_the_warm_up(void) {
    memset(seen.latency_us, 0, LATENCY_BUCKETS * sizeof *seen.latency_us);
    seen.answers = seen.max_ns = 0;
}

static void handle_events(int epoll) {
    struct epoll_event events[EVENTS];
    int ready = epoll_wait(epoll, events, EVENTS, 10);
    for (int i = 0; i < ready; i++) {
        Connection *c = events[i].data.ptr;
        if (events[i].events & EPOLLOUT) {
            int flushed = flush(c);
            if (flushed < 0) die("a connection was lost while sending");
            if (flushed) send_requests(c, now_ns());
        }
        if (events[i].events & ~(uint32_t)EPOLLOUT) read_answers(c);
    }
    if (now_ns() - seen.last_answer_ns > PATIENCE_S * 1000000000LL) die("no answer for %d s", PATIENCE_S);
}

static bool all_answered(Connection **all) {
    for (int i = 0; i < option.connections; i++)
        if (all[i]->in_flight) return false;
    return true;
}

static void run_load(void) {
    int epoll = epoll_create1(0);
    prepare_request();
    Connection **all = calloc((size_t)option.connections, sizeof *all);
    for (int i = 0; i < option.connections; i++) {
        all[i] = open_connection(epoll, connected_socket());
        all[i]->sent_ns = calloc((size_t)option.depth, sizeof(int64_t));
        all[i]->may_send = option.depth;
        all[i]->reads_while_blocked = EPOLLIN;
        all[i]->next_correlation_id = 1;
    }
    seen.last_answer_ns = now_ns();
    for (int i = 0; i < option.connections; i++) send_requests(all[i], now_ns());
    int64_t start = now_ns() + (int64_t)(option.warmup * 1e9), now;
    while (now_ns() < start) handle_events(epoll);
    forget_the_warm_up();
    start = now_ns();
    while ((now = now_ns()) < start + (int64_t)(option.seconds * 1e9)) handle_events(epoll);
    seen.draining = true;
    while (!all_answered(all)) handle_events(epoll);
    print_load((double)(now - start) / 1e9);
}

/* ---- accept, idle ------------------------------------------------------------------------------------------- */

/* Start a connection whose request goes out once it stands. `data.fd` names it: it has no other state. */
static void start_visit(int epoll) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (fd < 0 || (connect(fd, (struct sockaddr *)&option.target, sizeof option.target) && errno != EINPROGRESS))
        die("connect: %s", strerror(errno));
    struct epoll_event event = {.events = EPOLLOUT, .data.fd = fd};
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

static void run_accept(void) {
    uint8_t request[HEAD_BYTES], answer_[HEAD_BYTES * 4];
    size_t request_bytes = api_versions_request(request, sizeof request);
    int epoll = epoll_create1(0);
    for (int i = 0; i < option.connections; i++) start_visit(epoll);
    struct epoll_event events[EVENTS];
    int64_t start = now_ns(), last = start, now, visits = 0;
    while ((now = now_ns()) < start + (int64_t)(option.seconds * 1e9)) {
        if (now - last > PATIENCE_S * 1000000000LL) die("no answer for %d s", PATIENCE_S);
        int ready = epoll_wait(epoll, events, EVENTS, 10);
        for (int i = 0; i < ready; i++) {
            int fd = events[i].data.fd;
            if (events[i].events & EPOLLOUT) {
                if (write(fd, request, request_bytes) != (ssize_t)request_bytes) die("connect: %s", strerror(errno));
                struct epoll_event event = {.events = EPOLLIN, .data.fd = fd};
                epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
                continue;
            }
            /* Peeked at until it is whole: it comes in one segment or soon after. */
            ssize_t got = recv(fd, answer_, sizeof answer_, MSG_PEEK);
            if (got <= 0) die("a connection was closed on us");
            if (got < 4 || (uint32_t)got < frame_bytes(answer_)) continue;
            if ((uint32_t)got > frame_bytes(answer_) || memcmp(answer_ + 4, "\0\0\0\0\0", 6))
                die("ApiVersions: a broken answer");
            /* Read, so that the close is a FIN and not a reset. */
            if (recv(fd, answer_, sizeof answer_, 0) != got) die("ApiVersions: %s", strerror(errno));
            close(fd);
            visits++;
            last = now;
            start_visit(epoll);
        }
    }
    double seconds = (double)(now - start) / 1e9;
    printf("{\"requests\": %lld, \"requests_in_all\": %lld, \"seconds\": %.4f, \"requests_per_second\": %.1f, "
           "\"cpu_seconds\": %.3f}\n",
           (long long)visits, (long long)visits, seconds, (double)visits / seconds, cpu_seconds());
}

static void run_idle(void) {
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN, .data.fd = STDIN_FILENO};
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, STDIN_FILENO, &event)) die("stdin must be a pipe");
    for (int i = 0; i < option.connections; i++) {
        event.data.fd = connected_socket();
        epoll_ctl(epoll, EPOLL_CTL_ADD, event.data.fd, &event);
    }
    printf("{\"connections\": %d}\n", option.connections);
    fflush(stdout);
    if (epoll_wait(epoll, &event, 1, -1) == 1 && event.data.fd != STDIN_FILENO) die("an idle connection was closed on us");
}

/* ---- command line ------------------------------------------------------------------------------------------- */

static struct sockaddr_in parse_target(const char *text) {
    char host[64];
    int port;
    struct sockaddr_in address = {.sin_family = AF_INET};
    if (sscanf(text, "%63[^:]:%d", host, &port) != 2 || inet_pton(AF_INET, host, &address.sin_addr) != 1)
        die("--target: expected IPV4:PORT, got '%s'", text);
    address.sin_port = htons((uint16_t)port);
    return address;
}

static void parse_options(int argc, char **argv) {
    static const struct option LONG[] = {
        {"port", 1, 0, 'p'}, {"answer-bytes", 1, 0, 'a'}, {"target", 1, 0, 't'}, {"connections", 1, 0, 'c'},
        {"depth", 1, 0, 'd'}, {"api", 1, 0, 'A'}, {"size", 1, 0, 's'}, {"seconds", 1, 0, 'S'},
        {"warmup", 1, 0, 'w'}, {"cpu", 1, 0, 'C'}, {"client-id", 1, 0, 'i'}, {0, 0, 0, 0},
    };
    for (int letter; (letter = getopt_long(argc, argv, "", LONG, NULL)) != -1;) {
        switch (letter) {
            case 'p': option.port = atoi(optarg); break;
            case 'a': option.answer_bytes = atoll(optarg); break;
            case 't': option.target = parse_target(optarg); break;
            case 'c': option.connections = atoi(optarg); break;
            case 'd': option.depth = atoi(optarg); break;
            case 's': option.size = atoll(optarg); break;
            case 'S': option.seconds = atof(optarg); break;
            case 'w': option.warmup = atof(optarg); break;
            case 'C': option.cpu = atoi(optarg); break;
            case 'i': option.client_id = optarg; break;
            case 'A':
                if (strcmp(optarg, "produce") && strcmp(optarg, "fetch")) die("--api: produce or fetch");
                option.api = strcmp(optarg, "fetch") ? PRODUCE : FETCH;
                break;
            default: exit(2);
        }
    }
    if (option.connections < 1 || option.depth < 1 || option.size < 0 || option.size > 1 << 30 || option.seconds <= 0)
        die("connections, depth and seconds must be positive, size at most 1 GiB");
    if (strlen(option.client_id) > 200) die("--client-id: at most 200 bytes");
}

static void stay_on_cpu(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set)) die("--cpu %d: %s", cpu, strerror(errno));
}

int main(int argc, char **argv) {
    const char *mode = argc > 1 ? argv[1] : "";
    bool backend = !strcmp(mode, "backend"), load = !strcmp(mode, "load");
    bool accepting = !strcmp(mode, "accept"), idle = !strcmp(mode, "idle");
    if (!backend && !load && !accepting && !idle) die("backend, load, accept or idle; see the head of rig.c");
    parse_options(argc - 1, argv + 1);
    if (backend ? option.port <= 0 : option.target.sin_port == 0) die(backend ? "--port is missing" : "--target is missing");
    if (option.cpu >= 0) stay_on_cpu(option.cpu);
    signal(SIGPIPE, SIG_IGN);
    zeros = mmap(NULL, ZEROS_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    seen.latency_us = calloc(LATENCY_BUCKETS, sizeof *seen.latency_us);
    if (zeros == MAP_FAILED || !seen.latency_us) die("out of memory");
    /* Written once: else every page is the kernel's one zero page, and copying from it is faster than life. */
    memset(zeros, 1, ZEROS_BYTES);
    memset(zeros, 0, ZEROS_BYTES);
    if (backend) run_backend();
    else if (load) run_load();
    else if (accepting) run_accept();
    else run_idle();
    return 0;
}
