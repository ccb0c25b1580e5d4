#define _GNU_SOURCE
#include "xread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct text {
    const char *at, *end;
};

/* The number of a RESP header of this kind, -1 where the reply is not whole yet. */
static long resp_number(struct text *text, char kind)
{
    const char *line_end = text->at < text->end ? memchr(text->at, '\n', (size_t)(text->end - text->at)) : NULL;
    if (!line_end)
        return -1;
    if (*text->at != kind)
        die("expected %c, the server answered %.*s", kind, (int)(line_end - text->at), text->at);
    long number = atol(text->at + 1);
    text->at = line_end + 1;
    return number;
}

static const char *resp_bulk(struct text *text, long *size)
{
    *size = resp_number(text, '$');
    if (*size < 0 || text->end - text->at < *size + 2)
        return NULL;
    const char *bytes = text->at;
    text->at += *size + 2;
    return bytes;
}

/* One XREAD reply: [[stream, [[id, [field, body]] ...]]]. Returns its messages, 0 while it is not whole. */
static long reply_entries(struct text text, char *last_id, struct times *times, int64_t now)
{
    char id[64] = "";
    long size, entries;
    if (resp_number(&text, '*') < 0 || resp_number(&text, '*') < 0 || !resp_bulk(&text, &size))
        return 0;
    entries = resp_number(&text, '*');
    size_t measured = times ? times->count : 0;
    for (long i = 0; i < entries; i++) {
        const char *bytes;
        int64_t sent_ns;
        if (resp_number(&text, '*') < 0 || !(bytes = resp_bulk(&text, &size)))
            goto partial;
        memcpy(id, bytes, (size_t)size);
        id[size] = 0;
        if (resp_number(&text, '*') < 0 || !resp_bulk(&text, &size) || !(bytes = resp_bulk(&text, &size)))
            goto partial;
        if (!times)
            continue;
        memcpy(&sent_ns, bytes, 8);
        times_between(times, sent_ns, now);
    }
    if (entries > 0)
        strcpy(last_id, id);
    return entries < 0 ? 0 : entries;
partial:
    if (times)
        times->count = measured;
    return 0;
}

struct xread xread_open(int fd, long entries)
{
    size_t room = (size_t)entries * ((size_t)opt.size + 128) + (64 << 10);
    return (struct xread){.fd = fd, .entries = entries, .last_id = "0-0", .bytes = malloc(room), .room = room};
}

long xread_next(struct xread *x, struct times *times)
{
    char line[512], number[32];
    size_t fill = 0;
    int digits = sprintf(number, "%ld", x->entries);
    int size = sprintf(line,
                       "*8\r\n$5\r\nXREAD\r\n$5\r\nCOUNT\r\n$%d\r\n%s\r\n$5\r\nBLOCK\r\n$5\r\n20000\r\n"
                       "$7\r\nSTREAMS\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n",
                       digits, number, strlen(opt.topic), opt.topic, strlen(x->last_id), x->last_id);
    send_all(x->fd, line, (size_t)size);
    for (long entries;;) {
        if (fill == x->room)
            die("a reply is larger than %zu bytes", x->room);
        fill += receive(x->fd, x->bytes + fill, x->room - fill);
        /* A reply ends with a line; to look before costs more than the server's part of it. */
        if (x->bytes[fill - 1] != '\n')
            continue;
        if ((entries = reply_entries((struct text){x->bytes, x->bytes + fill}, x->last_id, times, now_ns())))
            return entries;
    }
}
