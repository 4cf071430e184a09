/* The least that a server can do for a request: read it, find its end, write a prepared answer.
 *
 * One thread and one epoll. HTTP/1.1 by the end of the head and Content-Length; HTTP/2 by a walk over frames,
 * where a request ends with END_STREAM and the prepared frames get its stream's number. Nothing else is
 * looked at, and header blocks are not decoded. A body is put where a model could read it, in one piece.
 *
 *     floor PORT HTTP_ANSWER GRPC_ANSWER
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { DATA, HEADERS, SETTINGS = 4, PING = 6, WINDOW_UPDATE = 8 };
enum { ACK = 1, END_STREAM = 1 };
enum { FRAME_HEAD = 9, PREFACE = 24, EVENTS = 256 };
enum { HEAD_BYTES = 4 << 10, READ_BYTES = 256 << 10, BODY_BYTES = 1 << 20, STREAMS = 256 };
#define MAX_WINDOW 0x7fffffffu

struct answer {
    char bytes[HEAD_BYTES];
    size_t size;
};

struct body {
    struct body *next; /* among those that are free */
    size_t filled;
    char bytes[BODY_BYTES];
};

struct connection {
    int fd;
    int known, http2; /* by the first bytes */
    size_t held;      /* bytes of `input` */
    size_t left;      /* bytes to come of the body or DATA frame that has begun */
    uint32_t stream;  /* of that frame */
    int ends;         /* it carries END_STREAM */
    uint32_t used;    /* bytes of the connection's window */
    size_t ready;     /* bytes of `output` */
    char input[READ_BYTES];
    char output[READ_BYTES];
    struct body *bodies[STREAMS]; /* by stream; HTTP/1.1 has one */
};

static struct answer http_answer, grpc_answer;
static struct body *free_bodies; /* the last one used first: it is in the processor's cache */

static void check(int failed, const char *what)
{
    if (failed) {
        perror(what);
        exit(1);
    }
}

static void load(struct answer *answer, const char *path)
{
    FILE *file = fopen(path, "rb");
    check(!file, path);
    answer->size = fread(answer->bytes, 1, sizeof answer->bytes, file);
    check(!feof(file), path);
    fclose(file);
}

static uint32_t number_at(const char *at)
{
    uint32_t number;
    memcpy(&number, at, sizeof number);
    return ntohl(number);
}

static void put_number(char *at, uint32_t number)
{
    number = htonl(number);
    memcpy(at, &number, sizeof number);
}

static void put(struct connection *c, const char *bytes, size_t size)
{
    memcpy(c->output + c->ready, bytes, size);
    c->ready += size;
}

static int flush(struct connection *c)
{
    ssize_t sent = c->ready ? send(c->fd, c->output, c->ready, MSG_NOSIGNAL) : 0;
    int all = sent == (ssize_t)c->ready;
    c->ready = 0;
    return all;
}

static struct body **body_of(struct connection *c, uint32_t stream)
{
    return &c->bodies[stream / 2 % STREAMS];
}

static void begin(struct body **place)
{
    struct body *body = *place ? *place : free_bodies;
    if (!body)
        check(!(body = malloc(sizeof *body)), "malloc");
    else if (!*place)
        free_bodies = body->next;
    body->filled = 0;
    *place = body;
}

static void end(struct body **place)
{
    if (*place) {
        (*place)->next = free_bodies;
        free_bodies = *place;
        *place = NULL;
    }
}

static void fill(struct body *body, const char *bytes, size_t size)
{
    if (!body || size > BODY_BYTES - body->filled)
        return;
    if (bytes)
        memcpy(body->bytes + body->filled, bytes, size);
    body->filled += size;
}

/* HTTP/1.1 */

static size_t content_length(const char *at, const char *end)
{
    static const char name[] = "\r\ncontent-length:";
    for (; (at = memchr(at, '\r', end - at)) && end - at > (ssize_t)sizeof name; at++)
        if (!strncasecmp(at, name, sizeof name - 1))
            return strtoul(at + sizeof name - 1, NULL, 10);
    return 0;
}

static int parse_http(struct connection *c)
{
    size_t at = 0;
    char *stop;
    while ((stop = memmem(c->input + at, c->held - at, "\r\n\r\n", 4))) {
        size_t start = stop + 4 - c->input, size = content_length(c->input + at, stop);
        size_t here = c->held - start < size ? c->held - start : size;
        begin(&c->bodies[0]);
        fill(c->bodies[0], c->input + start, here);
        at = start + here;
        c->left = size - here;
        if (c->left)
            break;
        end(&c->bodies[0]);
        put(c, http_answer.bytes, http_answer.size);
    }
    c->held -= at;
    memmove(c->input, c->input + at, c->held);
    return flush(c);
}

static int read_http(struct connection *c)
{
    if (!c->left) {
        ssize_t got = recv(c->fd, c->input + c->held, HEAD_BYTES - c->held, 0);
        if (got <= 0)
            return got < 0 && errno == EAGAIN;
        c->held += got;
        if (!parse_http(c))
            return 0;
    }
    if (!c->left)
        return 1;
    struct body *body = c->bodies[0];
    if (c->left > BODY_BYTES - body->filled)
        return 0;
    ssize_t got = recv(c->fd, body->bytes + body->filled, c->left, 0); /* straight to its place */
    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    fill(body, NULL, got);
    c->left -= got;
    if (!c->left) {
        end(&c->bodies[0]);
        put(c, http_answer.bytes, http_answer.size);
    }
    return flush(c);
}

/* HTTP/2 */

static void answer_stream(struct connection *c, uint32_t stream)
{
    char *start = c->output + c->ready;
    end(body_of(c, stream));
    put(c, grpc_answer.bytes, grpc_answer.size);
    for (char *at = start; at < c->output + c->ready; at += FRAME_HEAD + (number_at(at) >> 8))
        put_number(at + 5, stream);
}

static void update_window(struct connection *c, uint32_t increment)
{
    char frame[FRAME_HEAD + 4] = {0, 0, 4, WINDOW_UPDATE};
    put_number(frame + FRAME_HEAD, increment);
    put(c, frame, sizeof frame);
}

static void greet(struct connection *c)
{
    /* INITIAL_WINDOW_SIZE and MAX_FRAME_SIZE, both the largest */
    static const char settings[] = "\0\0\x0c\x04\0\0\0\0\0\0\x04\x7f\xff\xff\xff\0\x05\0\xff\xff\xff";
    put(c, settings, sizeof settings - 1);
    update_window(c, MAX_WINDOW - 65535);
}

static size_t take_data(struct connection *c, const char *bytes, size_t here)
{
    size_t size = here < c->left ? here : c->left;
    fill(*body_of(c, c->stream), bytes, size);
    c->left -= size;
    if (!c->left && c->ends)
        answer_stream(c, c->stream);
    return size;
}

static void take_control(struct connection *c, const char *frame, size_t size)
{
    char kind = frame[3], flags = frame[4];
    uint32_t stream = number_at(frame + 5) & MAX_WINDOW;
    if (kind == HEADERS) {
        begin(body_of(c, stream));
        if (flags & END_STREAM)
            answer_stream(c, stream);
    } else if ((kind == SETTINGS || kind == PING) && !(flags & ACK)) {
        char *acknowledged = c->output + c->ready;
        put(c, frame, kind == PING ? size : FRAME_HEAD);
        if (kind == SETTINGS)
            memset(acknowledged, 0, 3);
        acknowledged[4] = ACK;
    }
}

static int parse_http2(struct connection *c)
{
    size_t at = 0;
    while (at < c->held) {
        char *frame = c->input + at;
        size_t here = c->held - at;
        if (c->left) {
            at += take_data(c, frame, here);
            continue;
        }
        if (here < FRAME_HEAD)
            break;
        size_t length = number_at(frame) >> 8;
        if (frame[3] == DATA) {
            c->stream = number_at(frame + 5) & MAX_WINDOW;
            c->ends = frame[4] & END_STREAM;
            c->left = length;
            c->used += length;
            at += FRAME_HEAD;
            if (!length && c->ends)
                answer_stream(c, c->stream);
        } else if (here < FRAME_HEAD + length) {
            break;
        } else {
            take_control(c, frame, FRAME_HEAD + length);
            at += FRAME_HEAD + length;
        }
    }
    if (c->used > MAX_WINDOW / 2) {
        update_window(c, c->used);
        c->used = 0;
    }
    c->held -= at;
    memmove(c->input, c->input + at, c->held);
    return flush(c);
}

static int read_http2(struct connection *c)
{
    ssize_t got = recv(c->fd, c->input + c->held, READ_BYTES - c->held, 0);
    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    c->held += got;
    return parse_http2(c);
}

/* both */

static int serve(struct connection *c)
{
    if (c->known)
        return c->http2 ? read_http2(c) : read_http(c);
    ssize_t got = recv(c->fd, c->input, PREFACE, MSG_PEEK);
    if (got <= 0)
        return got < 0 && errno == EAGAIN;
    c->http2 = !memcmp(c->input, "PRI * ", got < 6 ? got : 6);
    if (c->http2 && got < PREFACE)
        return 1;
    c->known = 1;
    if (!c->http2)
        return read_http(c);
    recv(c->fd, c->input, PREFACE, 0);
    greet(c);
    return read_http2(c);
}

static void leave(struct connection *c)
{
    for (int i = 0; i < STREAMS; i++)
        end(&c->bodies[i]);
    close(c->fd);
    free(c);
}

static void admit(int queue, int listener)
{
    int yes = 1, fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
    if (fd < 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    struct connection *c = calloc(1, sizeof *c);
    check(!c, "calloc");
    c->fd = fd;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = c};
    check(epoll_ctl(queue, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    load(&http_answer, words[2]);
    load(&grpc_answer, words[3]);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(words[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int yes = 1, listener = socket(AF_INET, SOCK_STREAM, 0), queue = epoll_create1(0);
    setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    check(bind(listener, (struct sockaddr *)&address, sizeof address) || listen(listener, 128), "listen");
    struct epoll_event events[EVENTS], event = {.events = EPOLLIN};
    check(epoll_ctl(queue, EPOLL_CTL_ADD, listener, &event), "epoll_ctl");
    for (;;) {
        int ready = epoll_wait(queue, events, EVENTS, -1);
        for (int i = 0; i < ready; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c)
                admit(queue, listener);
            else if (!serve(c))
                leave(c);
        }
    }
}
