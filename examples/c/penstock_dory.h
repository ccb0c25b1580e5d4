/* Send messages to a Penstock node's Dory inputs from C. Header only: copy it, include it, there is nothing to link.
 *
 *     struct dory_sender sender;
 *     if (dory_open_datagram(&sender, "/run/penstock/dory.socket") == 0) {
 *         dory_send(&sender, "orders", NULL, 0, "hello", 5);
 *         dory_close(&sender);
 *     }
 *
 * Nothing ever comes back. Every function returns 0, or -1 with errno set; EMSGSIZE is for what does not fit. */
#ifndef PENSTOCK_DORY_H
#define PENSTOCK_DORY_H

#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

struct dory_sender {
    int socket;
};

static inline int dory_connect_(struct dory_sender *sender, int family, int kind, const void *place, socklen_t size) {
    sender->socket = socket(family, kind | SOCK_CLOEXEC, 0);
    if (sender->socket < 0) return -1;
    if (connect(sender->socket, (const struct sockaddr *)place, size) == 0) return 0;
    int why = errno;
    close(sender->socket);
    errno = why;
    return -1;
}

static inline int dory_open_path_(struct dory_sender *sender, int kind, const char *path) {
    struct sockaddr_un place = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof place.sun_path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    strcpy(place.sun_path, path);
    return dory_connect_(sender, AF_UNIX, kind, &place, sizeof place);
}

static inline int dory_open_datagram(struct dory_sender *sender, const char *path) {
    return dory_open_path_(sender, SOCK_DGRAM, path);
}

static inline int dory_open_stream(struct dory_sender *sender, const char *path) {
    return dory_open_path_(sender, SOCK_STREAM, path);
}

static inline int dory_open_tcp(struct dory_sender *sender, uint16_t port) {
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    return dory_connect_(sender, AF_INET, SOCK_STREAM, &place, sizeof place);
}

static inline void dory_close(struct dory_sender *sender) { close(sender->socket); }

static inline unsigned char *dory_put_(unsigned char *at, uint64_t number, int bytes) {
    for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8) *at++ = (unsigned char)(number >> shift);
    return at;
}

/* Over a stream, what is left of a message must follow, or the next one could not be found. */
static inline int dory_write_(int socket, struct iovec *parts, int count) {
    while (count) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        ssize_t sent = sendmsg(socket, &message, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR) continue;
        if (sent < 0) return -1;
        while (count && (size_t)sent >= parts->iov_len) sent -= (ssize_t)parts->iov_len, ++parts, --count;
        if (count) parts->iov_base = (char *)parts->iov_base + sent, parts->iov_len -= (size_t)sent;
    }
    return 0;
}

static inline int dory_send_(int socket, int keyed, uint32_t partition_key, const char *topic, const void *key,
                             size_t key_size, const void *value, size_t value_size) {
    size_t topic_size = strlen(topic), size = (keyed ? 32u : 28u) + topic_size + key_size + value_size;
    if (!topic_size || topic_size > 32767 || key_size > INT32_MAX || value_size > INT32_MAX || size > INT32_MAX) {
        errno = EMSGSIZE;
        return -1;
    }
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    unsigned char head[16], middle[12], end[4], *at = dory_put_(head, size, 4);
    at = dory_put_(at, keyed ? 257 : 256, 2);
    at = dory_put_(at, 0, 4); /* version and flags */
    if (keyed) at = dory_put_(at, partition_key, 4);
    at = dory_put_(at, topic_size, 2);
    dory_put_(dory_put_(middle, (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000, 8), key_size, 4);
    dory_put_(end, value_size, 4);
    struct iovec parts[] = {{head, (size_t)(at - head)}, {(void *)topic, topic_size}, {middle, sizeof middle},
                            {(void *)key, key_size},     {end, sizeof end},           {(void *)value, value_size}};
    return dory_write_(socket, parts, 6);
}

/* Any partition will do. */
static inline int dory_send(struct dory_sender *sender, const char *topic, const void *key, size_t key_size,
                            const void *value, size_t value_size) {
    return dory_send_(sender->socket, 0, 0, topic, key, key_size, value, value_size);
}

/* The partition is chosen by a number. */
static inline int dory_send_to(struct dory_sender *sender, uint32_t partition_key, const char *topic, const void *key,
                               size_t key_size, const void *value, size_t value_size) {
    return dory_send_(sender->socket, 1, partition_key, topic, key, key_size, value, value_size);
}

#endif
