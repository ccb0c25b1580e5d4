#define _GNU_SOURCE
#include "net.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

struct options opt = {
    .dialect = "nsq", .topic = "bench", .channel = "ch", .identify = "", .dir = ".", .path = "",
    .size = 100, .connections = 1, .channels = 1, .rdy = 2500, .rate = 10000, .unit = 120, .seconds = 2,
};

static const struct { const char *key; const char **text; long *number; double *real; } KEYS[] = {
    {"dialect", &opt.dialect, NULL, NULL},  {"topic", &opt.topic, NULL, NULL},
    {"channel", &opt.channel, NULL, NULL},  {"identify", &opt.identify, NULL, NULL},
    {"dir", &opt.dir, NULL, NULL},          {"port", NULL, &opt.port, NULL},
    {"size", NULL, &opt.size, NULL},        {"batch", NULL, &opt.batch, NULL},
    {"count", NULL, &opt.count, NULL},      {"connections", NULL, &opt.connections, NULL},
    {"channels", NULL, &opt.channels, NULL},{"rdy", NULL, &opt.rdy, NULL},
    {"rate", NULL, &opt.rate, NULL},        {"window", NULL, &opt.window, NULL},
    {"unit", NULL, &opt.unit, NULL},        {"seconds", NULL, NULL, &opt.seconds},
    {"patience", NULL, NULL, &opt.patience},{"varied", NULL, &opt.varied, NULL},
    {"ext", NULL, &opt.ext, NULL},          {"tags", NULL, &opt.tags, NULL},
    {"first_tag", NULL, &opt.first_tag, NULL},{"untagged", NULL, &opt.untagged, NULL},
    {"claims", NULL, &opt.claims, NULL},    {"topics", NULL, &opt.topics, NULL},
    {"path", &opt.path, NULL, NULL},
};

void options_parse(int count, char **words)
{
    if (count < 2)
        die("usage: load MODE key=value ...");
    opt.mode = words[1];
    for (int i = 2; i < count; i++) {
        char *value = strchr(words[i], '=');
        size_t k = 0, keys = sizeof KEYS / sizeof *KEYS;
        if (!value)
            die("%s is not key=value", words[i]);
        *value++ = 0;
        while (k < keys && strcmp(KEYS[k].key, words[i]))
            k++;
        if (k == keys)
            die("unknown key %s", words[i]);
        if (KEYS[k].text)
            *KEYS[k].text = value;
        else if (KEYS[k].number)
            *KEYS[k].number = atol(value);
        else
            *KEYS[k].real = atof(value);
    }
    if (opt.size < 32)
        die("size must be at least 32, the bytes that tell bodies apart");
}

void die(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fprintf(stderr, "load %s: ", opt.mode ? opt.mode : "");
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    exit(1);
}

static int64_t clock_ns(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

int64_t now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }

int64_t wall_ns(void) { return clock_ns(CLOCK_REALTIME); }

double seconds_since(int64_t start_ns) { return (double)(now_ns() - start_ns) / 1e9; }

static struct sockaddr_in loopback(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)opt.port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

int dial(void)
{
    struct sockaddr_in address = loopback();
    int64_t start_ns = now_ns();
    int one = 1;
    for (;;) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (fd < 0)
            die("socket: %s", strerror(errno));
        if (!connect(fd, (struct sockaddr *)&address, sizeof address)) {
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
            return fd;
        }
        close(fd);
        if (seconds_since(start_ns) >= opt.patience)
            die("no connection to port %ld: %s", opt.port, strerror(errno));
        usleep(2000);
    }
}

int listen_on(void)
{
    struct sockaddr_in address = loopback();
    int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) || listen(fd, 16))
        die("cannot listen on port %ld: %s", opt.port, strerror(errno));
    return fd;
}

void set_nonblocking(int fd) { fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK); }

void send_all(int fd, const void *bytes, size_t size)
{
    const char *at = bytes;
    while (size) {
        ssize_t sent = send(fd, at, size, MSG_NOSIGNAL);
        if (sent <= 0)
            die("send: %s", strerror(errno));
        at += sent;
        size -= (size_t)sent;
    }
}

size_t receive(int fd, char *into, size_t room)
{
    ssize_t got = recv(fd, into, room, 0);
    if (got <= 0)
        die("the server closed the connection: %s", got ? strerror(errno) : "end of stream");
    return (size_t)got;
}

void times_add(struct times *times, int64_t ns)
{
    if (times->count == times->room) {
        times->room = times->room ? times->room * 2 : 1 << 16;
        times->ns = realloc(times->ns, times->room * sizeof *times->ns);
        if (!times->ns)
            die("out of memory");
    }
    times->ns[times->count++] = ns;
}

void times_between(struct times *times, int64_t sent_ns, int64_t seen_ns)
{
    if (sent_ns >= times->from_ns && sent_ns < times->until_ns)
        times_add(times, seen_ns - sent_ns);
}

static int by_value(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? -1 : x > y;
}

static double rank_us(const struct times *times, double share)
{
    size_t at = (size_t)((double)times->count * share);
    return (double)times->ns[at < times->count ? at : times->count - 1] / 1e3;
}

void times_print(struct times *times)
{
    if (!times->count)
        die("no latency was measured");
    qsort(times->ns, times->count, sizeof *times->ns, by_value);
    printf(",\"min_us\":%.1f,\"p50_us\":%.1f,\"p99_us\":%.1f,\"p999_us\":%.1f,\"max_us\":%.1f", rank_us(times, 0),
           rank_us(times, .5), rank_us(times, .99), rank_us(times, .999), rank_us(times, 1));
}
