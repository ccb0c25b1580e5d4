#define _GNU_SOURCE
#include "speech.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "queues.h"

/* Enough that a write is never cut short for want of bytes, little enough to stay in the cache. */
#define BLOCK_BYTES (512 << 10)

static char *put(char *out, const char *text) { return stpcpy(out, text); }

static char *put_u32(char *out, size_t value)
{
    uint32_t wire = htonl((uint32_t)value);
    memcpy(out, &wire, 4);
    return out + 4;
}

static unsigned seed = 1;

/* Bodies differ in their first 32 bytes, so that no server gains from equal ones. */
static char *put_bytes(char *out, size_t size)
{
    memset(out, 'x', size);
    for (size_t i = 0; i < 32 && i < size; i++)
        out[i] = (char)('a' + rand_r(&seed) % 26);
    return out + size;
}

static char *put_body(char *out) { return put_bytes(out, (size_t)opt.size); }

size_t nsq_frame(const char *bytes, size_t size, uint32_t *type)
{
    uint32_t head[2];
    if (size < 8)
        return 0;
    memcpy(head, bytes, 8);
    *type = ntohl(head[1]);
    size_t whole = ntohl(head[0]) + 4u;
    if (*type == 1 && size >= whole)
        die("the server answered %.*s", (int)whole - 8, bytes + 8);
    return size < whole ? 0 : whole;
}

void nsq_identify(int fd, const char *wishes)
{
    char line[1024], *end = put_u32(put(line, "IDENTIFY\n"), strlen(wishes));
    end = put(end, wishes);
    send_all(fd, line, (size_t)(end - line));
    await_reply(fd);
}

static void nsq_greet(int fd)
{
    send_all(fd, "  V2", 4);
    if (*opt.identify)
        nsq_identify(fd, opt.identify);
}

/* With a tag or without one, a header has the same size and is parsed the same way. */
static char *put_header(char *out)
{
    char json[64];
    int tagged = opt.tags && rand_r(&seed) % 100 >= opt.untagged;
    long tag = opt.first_tag + (opt.tags ? rand_r(&seed) % opt.tags : 0);
    int size = sprintf(json, "{\"%sclient_dispatch_tag\":\"t%05ld\"}", tagged ? "##" : "__", tag);
    *out++ = (char)(size >> 8);
    *out++ = (char)size;
    return put(out, json);
}

static size_t nsq_ext_unit(char *out)
{
    char *head = out + sprintf(out, "PUB_EXT %s\n", opt.topic), *at = put_body(put_header(head + 4));
    put_u32(head, (size_t)(at - head - 4));
    return (size_t)(at - out);
}

/* Sizes of a batch in pairs around the mean, so that every unit has the same bytes in all. */
static size_t varied_size(long item)
{
    static long change;
    if (item % 2 == 0)
        return (size_t)(opt.size + (change = rand_r(&seed) % (opt.size / 2 + 1)));
    return (size_t)(opt.size - change);
}

static size_t nsq_unit(char *out)
{
    if (opt.ext)
        return nsq_ext_unit(out);
    char *at = out + sprintf(out, "%s %s\n", opt.batch ? "MPUB" : "PUB", opt.topic);
    size_t item = 4 + (size_t)opt.size;
    if (opt.batch)
        at = put_u32(put_u32(at, 4 + item * (size_t)opt.batch), (size_t)opt.batch);
    for (long i = 0; i < (opt.batch ? opt.batch : 1); i++) {
        size_t size = opt.varied ? varied_size(i) : (size_t)opt.size;
        at = put_bytes(put_u32(at, size), size);
    }
    return (size_t)(at - out);
}

static size_t nsq_scan(const char *bytes, size_t size, long *replies)
{
    static const char OK[10] = {0, 0, 0, 6, 0, 0, 0, 0, 'O', 'K'};
    size_t at = 0;
    for (;;) {
        uint32_t type;
        size_t whole;
        if (size - at >= 10 && !memcmp(bytes + at, OK, 10)) {
            ++*replies;
            at += 10;
        } else if ((whole = nsq_frame(bytes + at, size - at, &type))) {
            at += whole; /* a heartbeat: a publisher's commands are life enough */
        } else {
            return at;
        }
    }
}

static void redis_greet(int fd) { (void)fd; }

static size_t redis_unit(char *out)
{
    char *at = out + sprintf(out, "*5\r\n$4\r\nXADD\r\n$%zu\r\n%s\r\n$1\r\n*\r\n$1\r\nb\r\n$%ld\r\n", strlen(opt.topic),
                             opt.topic, opt.size);
    return (size_t)(put(put_body(at), "\r\n") - out);
}

static size_t redis_scan(const char *bytes, size_t size, long *replies)
{
    size_t at = 0;
    while (at < size) {
        const char *line = bytes + at, *end = memchr(line, '\n', size - at);
        if (!end)
            return at;
        size_t whole = (size_t)(end + 1 - line);
        if (*line == '$')
            whole += (size_t)atol(line + 1) + 2;
        else if (*line != '+')
            die("the server answered %.*s", (int)whole - 2, line);
        if (whole > size - at)
            return at;
        ++*replies;
        at += whole;
    }
    return at;
}

static void nats_greet(int fd)
{
    char line[8192];
    size_t fill = 0;
    do
        fill += receive(fd, line + fill, sizeof line - fill - 1);
    while (!memchr(line, '\n', fill));
    const char *hello = "CONNECT {\"verbose\":false,\"pedantic\":false,\"headers\":true,\"no_responders\":true}\r\n"
                        "SUB _INBOX.b 1\r\nPING\r\n";
    send_all(fd, hello, strlen(hello));
    fill = 0;
    do {
        fill += receive(fd, line + fill, sizeof line - fill - 1);
        line[fill] = 0;
    } while (!strstr(line, "PONG\r\n"));
}

/* Each message is acknowledged by itself: JetStream's atomic batches were slower in every window that was tried. */
static size_t nats_unit(char *out)
{
    char *at = out + sprintf(out, "PUB %s _INBOX.b %ld\r\n", opt.topic, opt.size);
    return (size_t)(put(put_body(at), "\r\n") - out);
}

static size_t nats_scan(const char *bytes, size_t size, long *replies)
{
    size_t at = 0;
    while (at < size) {
        const char *line = bytes + at, *end = memchr(line, '\n', size - at);
        if (!end)
            return at;
        size_t whole = (size_t)(end + 1 - line);
        if (!memcmp(line, "MSG ", 4)) {
            const char *digits = memrchr(line, ' ', whole);
            size_t body = (size_t)atol(digits + 1);
            if (whole + body + 2 > size - at)
                return at;
            if (memmem(line + whole, body, "\"error\"", 7))
                die("the server answered %.*s", (int)body, line + whole);
            whole += body + 2;
            ++*replies;
        } else if (*line == '-' || *line == 'H') {
            die("the server answered %.*s", (int)(size - at > 200 ? 200 : size - at), line);
        }
        at += whole;
    }
    return at;
}

static void http_greet(int fd) { (void)fd; }

static size_t http_unit(char *out)
{
    const char *form = "POST /pub?topic=%s HTTP/1.1\r\nHost: 127.0.0.1:%ld\r\nContent-Length: %ld\r\n\r\n";
    return (size_t)(put_body(out + sprintf(out, form, opt.topic, opt.port, opt.size)) - out);
}

/* A reply is known by its first line and counted by its body, which is OK in every server that speaks this. */
static size_t http_scan(const char *bytes, size_t size, long *replies)
{
    static const char GOOD[] = "HTTP/1.1 200 OK\r\n";
    size_t at = 0;
    while (size - at > sizeof GOOD) {
        const char *end = memmem(bytes + at, size - at, "\r\n\r\n", 4);
        if (memcmp(bytes + at, GOOD, sizeof GOOD - 1))
            die("the server answered %.*s", (int)(size - at), bytes + at);
        if (!end || (size_t)(end + 6 - bytes) > size)
            return at;
        if (memcmp(end + 4, "OK", 2))
            die("the server answered %.*s", (int)(size - at), bytes + at);
        ++*replies;
        at = (size_t)(end + 6 - bytes);
    }
    return at;
}

static void m3msg_greet(int fd) { (void)fd; }

static char *put_varint(char *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7)
        *out++ = (char)(value | 0x80);
    *out++ = (char)value;
    return out;
}

/* An aggregated metric of opt.size bytes: what is not its id has 55. Numbers have one length each, so that units are
 * equal in size: ids of messages are those that have five bytes. */
static size_t m3msg_unit(char *out)
{
    static const char POLICY[26] = "\x12\x18\x0a\x0c\x08\x80\xc8\xaf\xa0\x25\x10\x80\x94\xeb\xdc\x03"
                                   "\x12\x08\x08\x80\x80\xf8\x94\x92\xa5\x27";
    static uint64_t id = 1ull << 28;
    long name = opt.size - 55;
    if (name < 1 || opt.size > 127)
        die("a metric has 56 to 127 bytes");
    char *at = put(out + 4, "\x0a\x12\x08");
    *at++ = (char)(id % 63 + 1);
    *at++ = 0x10;
    at = put_varint(at, id++);
    *at++ = 0x18;
    at = put_varint(at, 1700000000000000000ull + id);
    *at++ = 0x12;
    *at++ = (char)opt.size;
    *at++ = 0x0a;
    *at++ = (char)(opt.size - 2);
    *at++ = 0x0a;
    *at++ = (char)(name + 21);
    *at++ = 0x12;
    *at++ = (char)name;
    at = put_bytes(at, (size_t)name);
    *at++ = 0x18;
    at = put_varint(at, 1700000010000000000ull);
    *at++ = 0x21;
    memcpy(at, "\x01\x00\x00\x00\x00\x40\x45\x40", 8);
    memcpy(at += 8, POLICY, 26);
    memcpy(at += 26, "\x1a\x02\x08", 3);
    at += 3;
    *at++ = (char)(id % 7 + 1);
    put_u32(out, (size_t)(at - out - 4));
    return (size_t)(at - out);
}

/* An Ack may be larger than what is read at once, so its entries are counted as they come: one connection only. */
static size_t m3msg_scan(const char *bytes, size_t size, long *replies)
{
    static size_t left;
    size_t at = 0;
    for (;;) {
        if (!left) {
            if (size - at < 4)
                return at;
            uint32_t head;
            memcpy(&head, bytes + at, 4);
            left = ntohl(head);
            at += 4;
            continue;
        }
        if (size - at < 2 || size - at < 2 + (size_t)(unsigned char)bytes[at + 1])
            return at;
        size_t whole = 2 + (size_t)(unsigned char)bytes[at + 1];
        if (bytes[at] != 0x0a || whole > left)
            die("the server answered what is no Ack");
        ++*replies;
        at += whole;
        left -= whole;
    }
}

static size_t dory_unit(char *out)
{
    size_t topic = strlen(opt.topic), now_ms = (size_t)(wall_ns() / 1000000);
    char *at = put_u32(put_u32(out, 28 + topic + (size_t)opt.size), 0x0100 << 16); /* any partition, version 0 */
    memset(at, 0, 2);                                                             /* flags */
    at[2] = (char)(topic >> 8);
    at[3] = (char)topic;
    at = put_u32(put_u32(put(at + 4, opt.topic), now_ms >> 32), now_ms);
    return (size_t)(put_body(put_u32(put_u32(at, 0), (size_t)opt.size)) - out); /* no key */
}

static const struct speech SPEECHES[] = {
    {"nsq", nsq_greet, nsq_unit, nsq_scan, 0, 0},
    {"redis", redis_greet, redis_unit, redis_scan, 2, 1},
    {"nats", nats_greet, nats_unit, nats_scan, 2, 1},
    {"http", http_greet, http_unit, http_scan, 0, 1},
    {"m3msg", m3msg_greet, m3msg_unit, m3msg_scan, 0, 1},
    {"sqs", http_greet, sqs_unit, sqs_scan, 0, 0},
    {"dory", NULL, dory_unit, NULL, 0, 1}, /* is never answered: the modes in dory.c alone */
    {"dynamiq", http_greet, dynamiq_unit, dynamiq_scan, 0, 1},
};

const struct speech *speech;

void speech_choose(void)
{
    for (size_t i = 0; i < sizeof SPEECHES / sizeof *SPEECHES; i++)
        if (!strcmp(SPEECHES[i].dialect, opt.dialect))
            speech = &SPEECHES[i];
    if (!speech)
        die("unknown dialect %s", opt.dialect);
}

struct block block_make(void)
{
    size_t batch = (size_t)(opt.batch ? opt.batch : 1);
    char *unit = malloc(4096 + batch * ((size_t)opt.size + 256));
    struct block block = {.unit_bytes = speech->unit(unit)};
    free(unit);
    block.messages_per_unit = speech->single_only ? 1 : (long)batch;
    block.units = BLOCK_BYTES / block.unit_bytes + 1;
    if (block.units < (size_t)opt.topics)
        block.units = (size_t)opt.topics;
    block.bytes = malloc(block.units * block.unit_bytes + 256);
    for (size_t i = 0; i < block.units; i++)
        if (speech->unit(block.bytes + i * block.unit_bytes) != block.unit_bytes)
            die("units differ in size");
    return block;
}

int greeted(void)
{
    int fd = dial();
    speech->greet(fd);
    return fd;
}

void await_reply(int fd)
{
    char bytes[65536];
    size_t fill = 0;
    for (long replies = 0; !replies;) {
        fill += receive(fd, bytes + fill, sizeof bytes - fill);
        size_t used = speech->scan(bytes, fill, &replies);
        memmove(bytes, bytes + used, fill -= used);
    }
}
