#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "modes.h"
#include "speech.h"

#define CHUNK_BYTES (1 << 20)
#define FRAME_HEAD_BYTES 34
#define FIN_BYTES 21

/* disk: appends `unit` bytes and waits for fdatasync, as a group commit does. */
void mode_disk(void)
{
    struct times times = {0};
    char path[4096], *bytes = calloc(1, (size_t)opt.unit);
    snprintf(path, sizeof path, "%s/fdatasync-probe", opt.dir);
    int fd = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    if (fd < 0)
        die("%s: %s", path, strerror(errno));
    int64_t start_ns = now_ns();
    while (opt.count ? (long)times.count < opt.count : seconds_since(start_ns) < opt.seconds) {
        int64_t sent_ns = now_ns();
        if (write(fd, bytes, (size_t)opt.unit) != opt.unit || fdatasync(fd))
            die("%s: %s", path, strerror(errno));
        times_add(&times, now_ns() - sent_ns);
    }
    double seconds = seconds_since(start_ns);
    unlink(path);
    printf("\"messages\":%zu,\"seconds\":%.6f", times.count, seconds);
    times_print(&times);
}

static const char *canned_reply(void)
{
    if (!strcmp(opt.dialect, "redis"))
        return "$15\r\n1700000000000-0\r\n";
    if (!strcmp(opt.dialect, "nats"))
        return "MSG _INBOX.b 1 28\r\n{\"stream\":\"bench\", \"seq\":10}\r\n";
    return "";
}

static void await_line(int fd)
{
    char byte = 0;
    while (byte != '\n')
        receive(fd, &byte, 1);
}

/* What a publisher expects before its first publish. */
static void welcome(int fd)
{
    char magic[4];
    if (!strcmp(opt.dialect, "nsq")) {
        recv(fd, magic, sizeof magic, MSG_WAITALL);
    } else if (!strcmp(opt.dialect, "nats")) {
        send_all(fd, "INFO {}\r\n", 9);
        for (int lines = 0; lines < 3; lines++) /* CONNECT, SUB, PING */
            await_line(fd);
        send_all(fd, "PONG\r\n", 6);
    }
}

/* sink: one canned reply for every `unit` bytes, whatever they are. */
void mode_sink(void)
{
    char *in = malloc(CHUNK_BYTES), *out = malloc(CHUNK_BYTES);
    const char *reply = canned_reply();
    size_t reply_bytes = strlen(reply), owed_bytes = 0;
    if (!reply_bytes)
        reply = "\0\0\0\6\0\0\0\0OK", reply_bytes = 10;
    size_t per_write = CHUNK_BYTES / reply_bytes;
    for (size_t i = 0; i < per_write; i++)
        memcpy(out + i * reply_bytes, reply, reply_bytes);
    int listener = listen_on(), fd = accept(listener, NULL, NULL);
    welcome(fd);
    for (ssize_t got; (got = recv(fd, in, CHUNK_BYTES, 0)) > 0;) {
        owed_bytes += (size_t)got;
        size_t replies = owed_bytes / (size_t)opt.unit;
        owed_bytes %= (size_t)opt.unit;
        for (; replies; replies -= replies < per_write ? replies : per_write)
            send_all(fd, out, (replies < per_write ? replies : per_write) * reply_bytes);
    }
    printf("\"messages\":0,\"seconds\":0");
}

/* source: answers SUB, then keeps RDY messages out until `count` were sent; a FIN is 21 bytes, nothing more. */
void mode_source(void)
{
    char *in = malloc(CHUNK_BYTES), *out = malloc(CHUNK_BYTES);
    size_t frame_bytes = FRAME_HEAD_BYTES + (size_t)opt.size, frames = CHUNK_BYTES / frame_bytes, fin_bytes = 0;
    uint32_t size_wire = __builtin_bswap32((uint32_t)frame_bytes - 4);
    memset(out, 'x', CHUNK_BYTES);
    for (size_t i = 0; i < frames; i++) {
        memcpy(out + i * frame_bytes, &size_wire, 4);
        memcpy(out + i * frame_bytes + 4, "\0\0\0\2", 4);
        memcpy(out + i * frame_bytes + 16, "\0\1", 2);
    }
    int listener = listen_on(), fd = accept(listener, NULL, NULL);
    await_line(fd);
    send_all(fd, "\0\0\0\6\0\0\0\0OK", 10);
    await_line(fd);
    for (long sent = 0, done = 0; done < opt.count; done = (long)(fin_bytes / FIN_BYTES)) {
        long open = opt.rdy - (sent - done), left = opt.count - sent, some = open < left ? open : left;
        some = some < (long)frames ? some : (long)frames;
        send_all(fd, out, (size_t)some * frame_bytes);
        sent += some;
        ssize_t got = recv(fd, in, CHUNK_BYTES, 0);
        if (got <= 0)
            die("the consumer went away");
        fin_bytes += (size_t)got;
    }
    send_all(fd, "\0\0\0\16\0\0\0\0CLOSE_WAIT", 18);
    recv(fd, in, CHUNK_BYTES, 0);
    printf("\"messages\":%ld,\"seconds\":0", opt.count);
}
