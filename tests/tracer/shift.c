/* Preloaded: CLOCK_REALTIME shows SHIFT_NS more, and SHIFT_PPM more a second since SHIFT_SINCE_NS.
 * The clocks of processes on one machine then differ as those of several do, and by how much is
 * known. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>

static int (*real_gettime)(clockid_t clock, struct timespec *time);
static int64_t shift_ns, since_ns;
static double ppm;

__attribute__((constructor)) static void init(void)
{
    const char *shift = getenv("SHIFT_NS"), *since = getenv("SHIFT_SINCE_NS"),
               *rate = getenv("SHIFT_PPM");
    *(void **)&real_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    shift_ns = shift ? strtoll(shift, NULL, 10) : 0;
    since_ns = since ? strtoll(since, NULL, 10) : 0;
    ppm = rate ? strtod(rate, NULL) : 0;
}

__attribute__((visibility("default"))) int clock_gettime(clockid_t clock, struct timespec *time)
{
    if (!real_gettime)
        init();
    int status = real_gettime(clock, time);
    if (status == 0 && clock == CLOCK_REALTIME) {
        int64_t ns = (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
        ns += shift_ns + (int64_t)((double)(ns - since_ns) * ppm * 1e-6);
        time->tv_sec = ns / 1000000000;
        time->tv_nsec = ns % 1000000000;
    }
    return status;
}
