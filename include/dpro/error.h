/* How the library reports what went wrong.
 *
 * Every function that can fail returns 0 or a negative DPRO_E* code and fills the caller's struct
 * dpro_error with one line that names the file or thing, the place, and the next step. The library
 * never prints and never exits.
 *
 * Structs of options begin with their size. Zeroed they are the defaults, with a size of 0 that
 * means the first version of the struct; a caller that sets its size to sizeof the struct may use
 * later fields, too, which later versions add at the end. A library that does not know a field that
 * is set says so (DPRO_EUSAGE). */
#ifndef DPRO_ERROR_H
#define DPRO_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

#define DPRO_API __attribute__((visibility("default")))

enum dpro_status {
    DPRO_OK = 0,
    DPRO_EUSAGE = -1,  /* the caller asked for something that makes no sense (exit code 2) */
    DPRO_EFORMAT = -2, /* the input is not what it should be (exit code 3) */
    DPRO_EEMPTY = -3,  /* the input is fine but holds too little to work with (exit code 3) */
    DPRO_EIO = -4,     /* the system could not read or write (exit code 4) */
    DPRO_ENOMEM = -5,  /* out of memory (exit code 4) */
    DPRO_ECANCEL = -6, /* a callback asked to stop */
    DPRO_EPEER = -7,   /* the processes can't work together (exit code 4) */
};

struct dpro_error {
    int code;       /* a DPRO_E* value, 0 when nothing went wrong */
    char text[508]; /* one line, UTF-8, no trailing newline, control characters escaped */
};

/* The library's version, "major.minor.patch"; static storage. */
DPRO_API const char *dpro_version(void);

#ifdef __cplusplus
}
#endif
#endif
