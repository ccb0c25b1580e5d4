#define _GNU_SOURCE
#include "speech.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Enough that a write is never cut short for want of bytes, little enough to stay in the cache. */
#define BLOCK_BYTES (512 << 10)

static char *put(char *out, const char *text) { return stpcpy(out, text); }

static char *put_u32(char *out, size_t value)
{
    uint32_t wire = htonl((uint32_t)value);
    memcpy(out, &wire, 4);
    return out + 4;
}

/* Bodies differ in their first 32 bytes, so that no server gains from equal ones. */
static char *put_body(char *out)
{
    static unsigned seed = 1;
    memset(out, 'x', (size_t)opt.size);
    for (int i = 0; i < 32; i++)
        out[i] = (char)('a' + rand_r(&seed) % 26);
    return out + opt.size;
}

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

static void nsq_greet(int fd)
{
    send_all(fd, "  V2", 4);
    if (!*opt.identify)
        return;
    char line[1024], *end = put_u32(put(line, "IDENTIFY\n"), strlen(opt.identify));
    end = put(end, opt.identify);
    send_all(fd, line, (size_t)(end - line));
    await_reply(fd);
}

static size_t nsq_unit(char *out)
{
    char *at = out + sprintf(out, "%s %s\n", opt.batch ? "MPUB" : "PUB", opt.topic);
    size_t item = 4 + (size_t)opt.size;
    if (opt.batch)
        at = put_u32(put_u32(at, 4 + item * (size_t)opt.batch), (size_t)opt.batch);
    for (long i = 0; i < (opt.batch ? opt.batch : 1); i++)
        at = put_body(put_u32(at, (size_t)opt.size));
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

static const struct speech SPEECHES[] = {
    {"nsq", nsq_greet, nsq_unit, nsq_scan, 0, 0},
    {"redis", redis_greet, redis_unit, redis_scan, 2, 1},
    {"nats", nats_greet, nats_unit, nats_scan, 2, 1},
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
    char *unit = malloc(256 + batch * ((size_t)opt.size + 256));
    struct block block = {.unit_bytes = speech->unit(unit)};
    free(unit);
    block.messages_per_unit = speech->single_only ? 1 : (long)batch;
    block.units = BLOCK_BYTES / block.unit_bytes + 1;
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
    char bytes[4096];
    size_t fill = 0;
    for (long replies = 0; !replies;) {
        fill += receive(fd, bytes + fill, sizeof bytes - fill);
        size_t used = speech->scan(bytes, fill, &replies);
        memmove(bytes, bytes + used, fill -= used);
    }
}
