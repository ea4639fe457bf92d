/* Log lines, and one line of progress for stages that last.
 *
 * The library calls from any thread, one call at a time for a sink; the lock is for progress_clear,
 * which the main thread calls. The line is drawn at most ten times a second, only after the
 * first second, so that short runs stay silent. */
#include "progress.h"

#include <fcntl.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <dpro/processes.h>

#define FIRST_DRAWN_AFTER_S 1.0
#define REDRAWN_AFTER_S     0.1

static struct {
    pthread_mutex_t lock;
    FILE *terminal;
    bool drawn, color;
    char stage[64], told[64];
    double begun_s, started_s, drawn_s; /* begun_s: the run; started_s: the stage */
    uint64_t first; /* what was done when the stage began: the rate is of what came after */
} progress = {.lock = PTHREAD_MUTEX_INITIALIZER};

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void clear_line(void)
{
    if (progress.drawn) {
        fputs("\r\033[K", progress.terminal);
        fflush(progress.terminal);
    }
    progress.drawn = false;
}

void progress_clear(void)
{
    pthread_mutex_lock(&progress.lock);
    clear_line();
    pthread_mutex_unlock(&progress.lock);
}

void progress_tell(const char *text)
{
    pthread_mutex_lock(&progress.lock);
    snprintf(progress.told, sizeof progress.told, "%s", text);
    pthread_mutex_unlock(&progress.lock);
}

/* "412 MB", "3.1 M ops": a count with a prefix of a thousand, three digits. */
static void print_amount(char *text, size_t size, double value, const char *unit)
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    bool bytes = strcmp(unit, "bytes") == 0;
    size_t prefix = 0;
    while (value >= 999.5 && prefix + 1 < sizeof prefixes / sizeof *prefixes) {
        value /= 1000;
        prefix++;
    }
    snprintf(text, size, "%.*f %s%s%s", prefix > 0 && value < 9.95 ? 1 : 0, value, prefixes[prefix],
             bytes || prefix == 0 ? "" : " ", bytes ? "B" : unit);
}

static void print_left(char *text, size_t size, double seconds)
{
    if (seconds < 90)
        snprintf(text, size, "%.0f s", ceil(seconds));
    else if (seconds < 90 * 60)
        snprintf(text, size, "%.0f min", seconds / 60);
    else
        snprintf(text, size, "%.1f h", seconds / 3600);
}

static void draw(const char *unit, uint64_t done, uint64_t total, double elapsed_s)
{
    char text[256], amount[64], part[64];
    double rate = (double)(done - progress.first) / elapsed_s;
    struct winsize window;
    size_t columns = 80, n;

    print_amount(amount, sizeof amount, (double)done, unit);
    n = (size_t)snprintf(text, sizeof text, "%s", amount);
    if (total > 0) {
        print_amount(part, sizeof part, (double)total, unit);
        n = (size_t)snprintf(text, sizeof text, "%.0f %%  %s of %s",
                             100.0 * (double)done / (double)total, amount, part);
    }
    if (rate > 0) {
        print_amount(part, sizeof part, rate, unit);
        n += (size_t)snprintf(text + n, sizeof text - n, "  %s/s", part);
    }
    if (total > done && rate > 0) {
        print_left(part, sizeof part, (double)(total - done) / rate);
        n += (size_t)snprintf(text + n, sizeof text - n, "  %s left", part);
    }
    if (progress.told[0] != '\0')
        snprintf(text + n, sizeof text - n, "  %s", progress.told);

    if (ioctl(fileno(progress.terminal), TIOCGWINSZ, &window) == 0 && window.ws_col > 0)
        columns = window.ws_col;
    n = strlen(progress.stage) + 2;
    if (n + strlen(text) >= columns) { /* a line that wraps can't be cleared */
        if (columns <= n + 1)
            return;
        text[columns - n - 1] = '\0';
    }
    fprintf(progress.terminal, "\r\033[K%s%s%s  %s", progress.color ? "\033[1m" : "",
            progress.stage, progress.color ? "\033[0m" : "", text);
    fflush(progress.terminal);
    progress.drawn = true;
}

static void on_progress(void *arg, const char *stage, const char *unit, uint64_t done,
                        uint64_t total)
{
    double now = now_s();
    (void)arg;
    pthread_mutex_lock(&progress.lock);
    if (strncmp(stage, progress.stage, sizeof progress.stage - 1) != 0 || done < progress.first) {
        clear_line();
        snprintf(progress.stage, sizeof progress.stage, "%s", stage);
        progress.started_s = now;
        progress.drawn_s = now;
        progress.first = done;
    }
    if (total > 0 && done >= total)
        clear_line(); /* the stage is over */
    else if (now - progress.begun_s >= FIRST_DRAWN_AFTER_S &&
             now - progress.drawn_s >= REDRAWN_AFTER_S) {
        draw(unit, done, total, now - progress.started_s);
        progress.drawn_s = now;
    }
    pthread_mutex_unlock(&progress.lock);
}

static void on_log(void *arg, enum dpro_log_level level, const char *text)
{
    static const char *const words[] = {"error", "warning", "info", "debug", "trace"};
    (void)arg;
    if (level == DPRO_LOG_ERROR || (size_t)level >= sizeof words / sizeof *words)
        return; /* an error comes back from the call that failed, and is said once */
    pthread_mutex_lock(&progress.lock);
    clear_line();
    fprintf(stderr, "dpro: %s: %s\n", words[level], text);
    pthread_mutex_unlock(&progress.lock);
}

/* Where stderr is shown as it is written; NULL: nowhere. Of mpirun's first process it is a pipe to
 * mpirun, whose own may be a terminal: written to by this way, the line comes before what the pipe
 * still holds. */
static FILE *find_terminal(void)
{
    struct stat st;
    char path[64];
    if (isatty(STDERR_FILENO))
        return stderr;
    if (dpro_processes_started() != 0 || fstat(STDERR_FILENO, &st) < 0 || !S_ISFIFO(st.st_mode))
        return NULL;
    snprintf(path, sizeof path, "/proc/%d/fd/2", (int)getppid());
    int fd = open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    if (fd >= 0 && isatty(fd))
        return fdopen(fd, "w");
    if (fd >= 0)
        close(fd);
    return NULL;
}

struct dpro_sink progress_start(int verbosity, bool quiet)
{
    static const enum dpro_log_level levels[] = {DPRO_LOG_ERROR, DPRO_LOG_INFO, DPRO_LOG_DEBUG,
                                                 DPRO_LOG_TRACE};
    struct dpro_sink sink = {.log = NULL};
    const char *term = getenv("TERM");
    const char *no_color = getenv("NO_COLOR");
    progress.begun_s = now_s();

    if (verbosity > 0) {
        sink.log = on_log;
        sink.level = levels[verbosity < 3 ? verbosity : 3];
    }
    if (!quiet && term != NULL && strcmp(term, "dumb") != 0)
        progress.terminal = find_terminal();
    if (progress.terminal != NULL) {
        sink.progress = on_progress;
        progress.color = no_color == NULL || no_color[0] == '\0';
    }
    return sink;
}
