/* A library that a job loads when it runs. */
#include <stddef.h>
#include <sys/socket.h>

__attribute__((visibility("default"))) void send_from_library(int fd, const char *bytes, size_t n);

void send_from_library(int fd, const char *bytes, size_t n)
{
    send(fd, bytes, n, 0);
}
