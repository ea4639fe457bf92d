/* Reads and writes the messages of Kineto's daemon. */
#include "attach/collect.h"

#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static const char daemon_name[] = "dynolog";
static const char *const type_names[] = {[FABRIC_CONTEXT] = "ctxt", [FABRIC_REQUEST] = "req"};

struct header {
    uint64_t size;
    char type[32];
};

_Static_assert(sizeof(struct header) == FABRIC_HEADER, "as on the wire");

static int32_t get_i32(const unsigned char *at)
{
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

static bool parse_request(const unsigned char *payload, size_t size, struct fabric_message *message)
{
    if (size < 16) /* wants, number of pids, job */
        return false;
    int32_t n = get_i32(payload + 4);
    if (n < 1 || (size_t)n > (size - 16) / 4)
        return false;
    message->wants = get_i32(payload);
    message->n_pids = n < FABRIC_PIDS_MAX ? (size_t)n : FABRIC_PIDS_MAX;
    for (size_t i = 0; i < message->n_pids; i++)
        message->pids[i] = get_i32(payload + 16 + 4 * i);
    return message->pids[0] > 0;
}

bool fabric_parse(const void *data, size_t size, struct fabric_message *message)
{
    struct header header;
    const unsigned char *payload = (const unsigned char *)data + FABRIC_HEADER;
    if (size < FABRIC_HEADER)
        return false;
    memcpy(&header, data, sizeof header);
    if (header.size > size - FABRIC_HEADER || header.type[sizeof header.type - 1] != '\0')
        return false;
    *message = (struct fabric_message){.n_pids = 0};
    if (strcmp(header.type, type_names[FABRIC_CONTEXT]) == 0) {
        message->type = FABRIC_CONTEXT;
        return header.size >= 16 && get_i32(payload + 4) > 0; /* gpu, pid, job */
    }
    if (strcmp(header.type, type_names[FABRIC_REQUEST]) == 0) {
        message->type = FABRIC_REQUEST;
        return parse_request(payload, header.size, message);
    }
    return false;
}

size_t fabric_answer(enum fabric_type type, const void *payload, size_t payload_size, void *out,
                     size_t out_size)
{
    struct header header = {.size = payload_size};
    if (out_size < FABRIC_HEADER || payload_size > out_size - FABRIC_HEADER)
        return 0;
    strcpy(header.type, type_names[type]);
    memcpy(out, &header, sizeof header);
    if (payload_size > 0)
        memcpy((unsigned char *)out + FABRIC_HEADER, payload, payload_size);
    return FABRIC_HEADER + payload_size;
}

/* An abstract name is all bytes of the address: Kineto's ends with a NUL, so ours must. */
static int make_address(struct sockaddr_un *address, socklen_t *size, struct dpro_error *err)
{
    const char *folder = getenv("KINETO_IPC_SOCKET_DIR");
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (folder == NULL || folder[0] == '\0') {
        memcpy(address->sun_path + 1, daemon_name, sizeof daemon_name);
        *size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + sizeof daemon_name);
        return 0;
    }
    int len = snprintf(address->sun_path, sizeof address->sun_path, "%s/%s", folder, daemon_name);
    if (len < 0 || (size_t)len >= sizeof address->sun_path)
        return dpro_error_set(err, DPRO_EUSAGE,
                              "KINETO_IPC_SOCKET_DIR: %s: longer than a socket's "
                              "name may be; choose a shorter one",
                              folder);
    *size = sizeof *address;
    return 0;
}

static bool is_listened_to(const struct sockaddr_un *address, socklen_t size)
{
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool there = fd >= 0 && connect(fd, (const struct sockaddr *)address, size) == 0;
    if (fd >= 0)
        close(fd);
    return there;
}

int fabric_listen(struct dpro_error *err)
{
    struct sockaddr_un address;
    socklen_t size = 0;
    int one = 1, rc = make_address(&address, &size, err);
    if (rc < 0)
        return rc;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return dpro_error_set(err, DPRO_EIO, "no socket: %s", strerror(errno));
    /* before the bind: no message without credentials gets in */
    if (setsockopt(fd, SOL_SOCKET, SO_PASSCRED, &one, sizeof one) < 0)
        goto failed;
    if (bind(fd, (const struct sockaddr *)&address, size) < 0) {
        bool is_file = address.sun_path[0] != '\0';
        if (errno != EADDRINUSE || !is_file || is_listened_to(&address, size) ||
            unlink(address.sun_path) < 0 || /* a daemon that was killed left it */
            bind(fd, (const struct sockaddr *)&address, size) < 0)
            goto failed;
    }
    if (address.sun_path[0] != '\0')
        chmod(address.sun_path, 0666); /* the job may be another user's; see who sends */
    return fd;
failed:
    rc = errno == EADDRINUSE
             ? dpro_error_set(err, DPRO_EIO,
                              "the socket 'dynolog' is taken: the dynolog daemon or another 'dpro "
                              "attach' runs here; stop it first")
             : dpro_error_set(err, DPRO_EIO,
                              "the socket 'dynolog' can't be had: %s; set KINETO_IPC_SOCKET_DIR to "
                              "a folder that "
                              "dpro can write to, for the job as well",
                              strerror(errno));
    close(fd);
    return rc;
}

void fabric_close(int fd)
{
    struct sockaddr_un address;
    socklen_t size = sizeof address;
    if (getsockname(fd, (struct sockaddr *)&address, &size) == 0 &&
        size > offsetof(struct sockaddr_un, sun_path) && address.sun_path[0] != '\0')
        unlink(address.sun_path);
    close(fd);
}
