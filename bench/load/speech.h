/* How a publisher speaks each protocol. Units are equal in size, so that positions are arithmetic and no
 * message costs the generator any work after the first block was built. */
#ifndef LOAD_SPEECH_H
#define LOAD_SPEECH_H

#include "net.h"

struct speech {
    const char *dialect;
    void (*greet)(int fd);         /* blocking; leaves nothing unread */
    size_t (*unit)(char *out);     /* writes one publish (or batch) and returns its bytes */
    size_t (*scan)(const char *bytes, size_t size, long *replies); /* counts whole replies, returns bytes used */
    size_t trailer;                /* bytes after the body of a single publish */
    int single_only;               /* 1 where the protocol has no batch command: opt.batch is ignored */
};

extern const struct speech *speech; /* the one that opt.dialect names */

void speech_choose(void);

/* Publish units back to back; written over and over. */
struct block {
    char *bytes;
    size_t unit_bytes, units;
    long messages_per_unit;
};

struct block block_make(void);

int greeted(void);                                              /* a connection ready to publish */
void await_reply(int fd);                                       /* blocks for exactly one reply */
void nsq_identify(int fd, const char *wishes);                  /* IDENTIFY with this JSON, answered */
size_t nsq_frame(const char *bytes, size_t size, uint32_t *type); /* whole frame's bytes, 0 while incomplete */

#endif
