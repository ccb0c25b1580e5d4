#define _GNU_SOURCE
#include "queues.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "modes.h"
#include "speech.h"

#define EVENTS 256
#define STALL_MS 20000
#define BATCH_MAX 10
#define REPLY_BYTES (1 << 20)
#define HANDLE_BYTES_MAX 1024

static unsigned seed = 1;

static char *put_hex(char *out, int digits)
{
    for (int i = 0; i < digits; i++)
        *out++ = "0123456789abcdef"[rand_r(&seed) % 16];
    return out;
}

/* What boto3 1.44 sends; signature and invocation differ from request to request, so no head comes twice. */
static char *put_head(char *out, const char *operation, size_t body)
{
    out += sprintf(out,
                   "POST / HTTP/1.1\r\nHost: localhost:%ld\r\nAccept-Encoding: identity\r\nX-Amz-Target: AmazonSQS.%s\r\n"
                   "Content-Type: application/x-amz-json-1.0\r\nx-amzn-query-mode: true\r\nUser-Agent: Boto3/1.44.0 "
                   "md/Botocore#1.44.0 ua/2.1 os/linux#6.18 md/arch#x86_64 lang/python#3.11.7 md/pyimpl#CPython "
                   "m/e,N,b,E,Z cfg/retry-mode#standard Botocore/1.44.0\r\nX-Amz-Date: 20261116T091436Z\r\n"
                   "Authorization: AWS4-HMAC-SHA256 Credential=any/20261116/us-east-1/sqs/aws4_request, "
                   "SignedHeaders=content-type;host;x-amz-date;x-amz-target;x-amzn-query-mode, Signature=",
                   opt.port, operation);
    out = stpcpy(put_hex(out, 64), "\r\namz-sdk-invocation-id: ");
    static const int GROUPS[] = {8, 4, 4, 4, 12};
    for (size_t i = 0; i < 5; i++) {
        if (i)
            *out++ = '-';
        out = put_hex(out, GROUPS[i]);
    }
    return out + sprintf(out, "\r\namz-sdk-request: attempt=1; max=1\r\nContent-Length: %zu\r\n\r\n", body);
}

static char *put_text(char *out)
{
    memset(out, 'x', (size_t)opt.size);
    for (int i = 0; i < 32; i++)
        out[i] = (char)('a' + rand_r(&seed) % 26);
    return out + opt.size;
}

static char *put_address(char *out)
{
    static long number;
    out += sprintf(out, "\"QueueUrl\": \"http://localhost:%ld/000000000000/%s", opt.port, opt.topic);
    if (opt.topics)
        out += sprintf(out, "%04ld", number++ % opt.topics);
    return stpcpy(out, "\"");
}

size_t sqs_unit(char *out)
{
    size_t room = 1024 + (size_t)(opt.batch ? opt.batch : 1) * ((size_t)opt.size + 64);
    char *body = malloc(room), *at = put_address(stpcpy(body, "{"));
    if (opt.batch) {
        at = stpcpy(at, ", \"Entries\": [");
        for (long i = 0; i < opt.batch; i++)
            at = stpcpy(put_text(at + sprintf(at, "%s{\"Id\": \"%ld\", \"MessageBody\": \"", i ? ", " : "", i)), "\"}");
        at = stpcpy(at, "]}");
    } else {
        at = stpcpy(put_text(stpcpy(at, ", \"MessageBody\": \"")), "\"}");
    }
    size_t size = (size_t)(at - body);
    char *end = put_head(out, opt.batch ? "SendMessageBatch" : "SendMessage", size);
    memcpy(end, body, size);
    free(body);
    return (size_t)(end + size - out);
}

/* Returns the bytes of a whole reply, 0 while it is not all there; any that is not 200 ends the program. */
static size_t reply(const char *bytes, size_t size, const char **body, size_t *body_size)
{
    static const char GOOD[] = "HTTP/1.1 200 ";
    const char *end = size > sizeof GOOD ? memmem(bytes, size, "\r\n\r\n", 4) : NULL;
    if (size > sizeof GOOD && memcmp(bytes, GOOD, sizeof GOOD - 1))
        die("the server answered %.*s", (int)size, bytes);
    if (!end)
        return 0;
    const char *line = bytes;
    while ((line = memchr(line, '\n', (size_t)(end - line))) && strncasecmp(++line, "content-length:", 15))
        ;
    if (!line)
        die("the server said no length: %.*s", (int)(end - bytes), bytes);
    *body = end + 4;
    *body_size = (size_t)atol(line + 15);
    size_t whole = (size_t)(*body - bytes) + *body_size;
    return whole <= size ? whole : 0;
}

static long count(const char *bytes, size_t size, const char *word)
{
    long found = 0;
    size_t length = strlen(word);
    for (const char *at = bytes; (at = memmem(at, size - (size_t)(at - bytes), word, length)); at += length)
        found++;
    return found;
}

size_t sqs_scan(const char *bytes, size_t size, long *replies)
{
    size_t at = 0, whole, body_size;
    const char *body;
    for (; (whole = reply(bytes + at, size - at, &body, &body_size)); at += whole) {
        if (count(body, body_size, "\"MessageId\"") != (opt.batch ? opt.batch : 1))
            die("the server answered %.*s", (int)body_size, body);
        ++*replies;
    }
    return at;
}

size_t dynamiq_unit(char *out)
{
    const char *form = "PUT /v1/queues/%s/message HTTP/1.1\r\nHost: 127.0.0.1:%ld\r\nAccept: */*\r\nUser-Agent: Ruby\r\n"
                       "Content-Type: text/plain\r\nContent-Length: %ld\r\n\r\n";
    return (size_t)(put_text(out + sprintf(out, form, opt.topic, opt.port, opt.size)) - out);
}

/* A message that was stored is answered with its id, one that was not with nothing. */
size_t dynamiq_scan(const char *bytes, size_t size, long *replies)
{
    size_t at = 0, whole, body_size;
    const char *body;
    for (; (whole = reply(bytes + at, size - at, &body, &body_size)); at += whole) {
        if (!body_size)
            die("a message was not stored");
        ++*replies;
    }
    return at;
}

struct receiver {
    int fd;
    int deleting; /* how many are being deleted, 0 while it receives */
    size_t fill;
    int64_t sent_ns;
    char *in;
};

static void ask(struct receiver *r)
{
    char out[2048], body[512], *at = put_address(stpcpy(body, "{"));
    at = stpcpy(at, ", \"MaxNumberOfMessages\": 10}");
    char *end = put_head(out, "ReceiveMessage", (size_t)(at - body));
    memcpy(end, body, (size_t)(at - body));
    r->deleting = 0;
    r->sent_ns = now_ns();
    send_all(r->fd, out, (size_t)(end - out) + (size_t)(at - body));
}

/* Deletes what a reply brought; returns how much that is. */
static int finish(struct receiver *r, const char *reply, size_t size)
{
    static const char WORD[] = "\"ReceiptHandle\"";
    static char body[512 + BATCH_MAX * (HANDLE_BYTES_MAX + 64)], out[sizeof body + 2048];
    char *to = stpcpy(put_address(stpcpy(body, "{")), ", \"Entries\": [");
    const char *at = reply, *end = reply + size;
    int found = 0;
    while ((at = memmem(at, (size_t)(end - at), WORD, sizeof WORD - 1))) {
        const char *from = memchr(at + sizeof WORD - 1, '"', (size_t)(end - at) - sizeof WORD + 1);
        const char *until = from ? memchr(from + 1, '"', (size_t)(end - from - 1)) : NULL;
        if (!until || until - from > HANDLE_BYTES_MAX || found == BATCH_MAX)
            die("the server answered %.*s", (int)size, reply);
        to += sprintf(to, "%s{\"Id\": \"%d\", \"ReceiptHandle\": \"%.*s\"}", found ? ", " : "", found,
                      (int)(until - from - 1), from + 1);
        found++;
        at = until;
    }
    if (!found)
        return 0;
    to = stpcpy(to, "]}");
    char *head = put_head(out, "DeleteMessageBatch", (size_t)(to - body));
    memcpy(head, body, (size_t)(to - body));
    send_all(r->fd, out, (size_t)(head - out) + (size_t)(to - body));
    return r->deleting = found;
}

/* drain: each connection receives ten messages and deletes them, over and over, until `count` or the time is over;
 * one that finds nothing ends. */
void mode_drain(void)
{
    struct receiver *all = calloc((size_t)opt.connections, sizeof *all);
    struct epoll_event events[EVENTS];
    struct times times = {0};
    int poller = epoll_create1(0);
    long messages = 0;
    for (long i = 0; i < opt.connections; i++) {
        struct epoll_event event = {EPOLLIN, {.u64 = (uint64_t)i}};
        all[i].fd = dial();
        all[i].in = malloc(REPLY_BYTES);
        epoll_ctl(poller, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    int64_t start_ns = now_ns(), end_ns = start_ns + (int64_t)(opt.seconds * 1e9);
    for (long i = 0; i < opt.connections; i++)
        ask(&all[i]);
    for (long open = opt.connections; open;) {
        int ready = epoll_wait(poller, events, EVENTS, STALL_MS);
        if (ready <= 0)
            die("stalled after %ld messages", messages);
        for (int e = 0; e < ready; e++) {
            struct receiver *r = &all[events[e].data.u64];
            const char *body;
            size_t body_size;
            r->fill += receive(r->fd, r->in + r->fill, REPLY_BYTES - r->fill);
            if (!reply(r->in, r->fill, &body, &body_size))
                continue;
            r->fill = 0;
            if (!r->deleting) {
                if (!finish(r, body, body_size))
                    open--;
                continue;
            }
            if (count(body, body_size, "\"Id\"") != r->deleting || count(body, body_size, "\"Code\""))
                die("the server answered %.*s", (int)body_size, body);
            messages += r->deleting;
            times_add(&times, now_ns() - r->sent_ns);
            if (opt.count ? messages >= opt.count : now_ns() >= end_ns)
                open--;
            else
                ask(r);
        }
    }
    printf("\"messages\":%ld,\"seconds\":%.6f", messages, seconds_since(start_ns));
    if (messages)
        times_print(&times);
}
