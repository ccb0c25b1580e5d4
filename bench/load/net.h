/* Sockets, clocks, options and percentiles: what every mode of the load generator stands on. */
#ifndef LOAD_NET_H
#define LOAD_NET_H

#include <stddef.h>
#include <stdint.h>

/* The command line: MODE key=value ...; a key that is not here ends the program. */
struct options {
    const char *mode;
    const char *dialect;  /* nsq, redis, nats, http (nsqd's /pub), m3msg, sqs, dynamiq or dory */
    const char *topic;
    const char *channel;
    const char *identify; /* JSON of an NSQ IDENTIFY, empty for none */
    const char *dir;      /* where the disk probe writes */
    const char *path;     /* Dory's UNIX socket */
    long port;
    long size;            /* bytes of a body */
    long batch;           /* messages of an MPUB, 0 for single publishes */
    long count;           /* messages, 0 to go by seconds */
    long connections;
    long channels;
    long rdy;
    long rate;            /* messages a second, for paced and fire */
    long window;          /* publishes without an answer at most, 0 for no limit */
    long unit;            /* bytes that the sink answers once */
    long varied;          /* 1: bodies of a batch have sizes from half to one and a half of `size` */
    long ext;             /* 1: PUB_EXT with a header, and consumers that take headers */
    long tags;            /* with ext: how many tags are published, 0 for headers without a tag */
    long first_tag;       /* the number of the first of them */
    long untagged;        /* with tags: percent of the messages that carry none all the same */
    long topics;          /* with sqs: so many queues in turn, called by the topic's name and a number of four digits */
    long claims;          /* with ext: so many consumers ask for a tag each, the others for none */
    double seconds;
    double patience;      /* seconds to wait for a server that does not listen yet */
};

extern struct options opt;

void options_parse(int count, char **words);

/* Say why and stop: a broken measurement must not look like a slow one. */
void die(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

int64_t now_ns(void);  /* monotonic */
int64_t wall_ns(void);
double seconds_since(int64_t start_ns);

int dial(void);                                  /* a blocking connection to opt.port, without Nagle's delay */
int listen_on(void);                             /* a listener on opt.port */
void set_nonblocking(int fd);
void send_all(int fd, const void *bytes, size_t size);
size_t receive(int fd, char *into, size_t room); /* blocking; the end of the stream is an error */

/* Latencies of one run, sorted when they are printed. */
struct times {
    int64_t *ns;
    size_t count, room;
    int64_t from_ns, until_ns; /* what `times_between` counts: messages that were sent from here to there */
};

void times_add(struct times *times, int64_t ns);
void times_between(struct times *times, int64_t sent_ns, int64_t seen_ns);
void times_print(struct times *times); /* ,"min_us":.. to ,"max_us":.. */

#endif
