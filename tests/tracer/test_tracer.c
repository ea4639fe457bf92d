/* What the preloaded tracer writes about real processes and real sockets, and that the process is
 * as it would be without it. The jobs are in traced.c. */
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../unit/case.h"
#include "../unit/temp_folder.h"
#include "read_log.h"

/* ---- running a job ---- */

static char out[80], file[96];

static int make_job_folder(void **state)
{
    int rc = make_folder(state);
    snprintf(out, sizeof out, "%s/out", folder);
    snprintf(file, sizeof file, "%s/file", folder);
    return rc;
}

#define CASE(name) TEST_BETWEEN(name, make_job_folder, remove_folder)

#define RUN(...) run((const char *[]){__VA_ARGS__, NULL})
static pid_t last_pid;

static pid_t start(const char **arguments, int standard_output)
{
    pid_t pid = fork();
    if (pid == 0) {
        while (open("/dev/null", O_RDWR) <= STDERR_FILENO) /* no socket is taken for one of them */
            ;
        if (standard_output >= 0)
            dup2(standard_output, STDOUT_FILENO);
        setenv("DPRO", "1", 0);
        setenv("DPRO_NET", "all", 0);
        setenv("DPRO_OUT", out, 1);
        setenv("LD_PRELOAD", getenv("DPRO_TRACER"), 1);
        execv(arguments[0], (char **)(uintptr_t)arguments);
        _exit(127);
    }
    last_pid = pid;
    return pid;
}

/* The exit status; -1: killed. */
static int run(const char **arguments)
{
    int status;
    pid_t pid = start(arguments, -1);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

#define JOB(...) RUN(getenv("DPRO_TRACED"), __VA_ARGS__)

/* The same with settings, "NAME=VALUE ..."; it has to end well. */
static void run_with(const char *settings, const char **arguments)
{
    char words[200], *rest, *name[8];
    size_t n = 0;
    snprintf(words, sizeof words, "%s", settings);
    for (char *word = strtok_r(words, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *value = strchr(word, '=');
        *value = '\0';
        setenv(name[n++] = word, value + 1, 1);
    }
    int status = run(arguments);
    while (n > 0)
        unsetenv(name[--n]);
    assert_int_equal(status, 0);
}

#define JOB_WITH(settings, ...)                                                                    \
    run_with(settings, (const char *[]){getenv("DPRO_TRACED"), __VA_ARGS__, NULL})

static int count_files(void)
{
    int n = 0;
    DIR *dir = opendir(out);
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return n;
}

/* ---- its log ---- */

#define MAX_CALLS       200000
#define MAX_CONNECTIONS 20000
struct log {
    struct log_header header;
    int n_calls, n_connections, n_gloo, n_zmtp, n_totals, n_anchors;
    uint64_t lost[N_LOSS_CAUSES];
    size_t n_bytes;
    bool whole;
    struct record_call calls[MAX_CALLS];
    struct record_connection connections[MAX_CONNECTIONS]; /* [number] */
    struct record_total totals[MAX_CONNECTIONS];           /* [number] */
    struct record_gloo gloo[100];
    struct record_zmtp zmtp[100];
};
static struct log the_log;

static bool add_log(struct log *log, const char *path)
{
    struct log_file from;
    if (!log_file_open(&from, path))
        return false;
    log->header = *from.header;
    log->n_bytes += from.n_bytes;
    for (const struct record *r; (r = log_file_next(&from));) {
        const void *whole = r;
        if (r->type == RECORD_CALL && log->n_calls < MAX_CALLS) {
            log->calls[log->n_calls++] = *(const struct record_call *)whole;
        } else if (r->type == RECORD_CONNECTION) {
            const struct record_connection *c = whole;
            assert_true(c->connection < MAX_CONNECTIONS);
            log->n_connections += log->connections[c->connection].connection == 0;
            log->connections[c->connection] = *c;
        } else if (r->type == RECORD_TOTAL) {
            const struct record_total *t = whole;
            log->totals[t->connection] = *t;
            log->n_totals++;
        } else if (r->type == RECORD_GLOO && log->n_gloo < 100) {
            log->gloo[log->n_gloo++] = *(const struct record_gloo *)whole;
        } else if (r->type == RECORD_ZMTP && log->n_zmtp < 100) {
            memcpy(&log->zmtp[log->n_zmtp++], whole, r->size_bytes);
        } else if (r->type == RECORD_LOSS) {
            const struct record_loss *loss = whole;
            log->lost[loss->cause] = loss->n_records;
        }
        log->n_anchors += r->type == RECORD_ANCHOR;
    }
    log->whole = log_file_whole(&from);
    log_file_close(&from);
    return true;
}

/* The log of the job that ran last. */
static bool read_all_log(void)
{
    char path[512], host[65] = "";
    memset(&the_log, 0, sizeof the_log);
    gethostname(host, sizeof host - 1);
    snprintf(path, sizeof path, "%s/net-%s-%d.log", out, host, (int)last_pid);
    return add_log(&the_log, path);
}

/* Runs a job, and reads what it left. */
#define LOGGED(...) LOGGED_WITH("", __VA_ARGS__)
#define LOGGED_WITH(settings, ...)                                                                 \
    do {                                                                                           \
        JOB_WITH(settings, __VA_ARGS__);                                                           \
        assert_true(read_all_log());                                                               \
    } while (0)

static bool read_log_at(const char *path)
{
    memset(&the_log, 0, sizeof the_log);
    return add_log(&the_log, path);
}

static const struct record_connection *other_end(const struct record_connection *c)
{
    for (uint32_t i = 1; i < MAX_CONNECTIONS; i++) {
        const struct record_connection *o = &the_log.connections[i];
        if (o->connection == 0 || o == c)
            continue;
        if (c->family == FAMILY_UNIX
                ? c->peer == i
                : o->local_port == c->remote_port && o->remote_port == c->local_port &&
                      memcmp(o->local, c->remote, sizeof o->local) == 0)
            return o;
    }
    return NULL;
}

/* Bytes of the calls, which must lie one after the other in the log's order; each thread's are, and
 * these jobs move a direction's bytes from one thread. */
static uint64_t moved(uint32_t connection, enum call_direction direction)
{
    uint64_t offset = 0;
    for (int i = 0; i < the_log.n_calls; i++) {
        const struct record_call *call = &the_log.calls[i];
        if (call->connection != connection || call->direction != direction)
            continue;
        assert_int_equal(call->offset, offset);
        assert_true(call->end_ns >= call->start_ns && call->returned <= call->requested);
        assert_int_equal(call->flags & CALL_ORDER_UNKNOWN, 0);
        offset += call->returned;
    }
    return offset;
}

/* Both ends are in the log, and what one sent the other received, without a gap. The number of
 * connections. */
static int check_pairs(void)
{
    int n = 0;
    assert_true(the_log.whole);
    for (int cause = 0; cause < N_LOSS_CAUSES; cause++)
        assert_int_equal(the_log.lost[cause], 0);
    for (uint32_t i = 1; i < MAX_CONNECTIONS; i++) {
        const struct record_connection *c = &the_log.connections[i], *o;
        if (c->connection == 0)
            continue;
        assert_non_null(o = other_end(c));
        assert_true(c->flags & CONNECTION_WHOLE);
        assert_int_equal(moved(i, DIRECTION_SEND), moved(o->connection, DIRECTION_RECEIVE));
        assert_int_equal(moved(i, DIRECTION_SEND), the_log.totals[i].sent_bytes);
        assert_int_equal(moved(i, DIRECTION_RECEIVE), the_log.totals[i].received_bytes);
        n++;
    }
    return n / 2;
}

/* ---- calls ---- */

CASE(every_call_is_recorded_with_its_bytes_on_ipv4_ipv6_and_unix_sockets)
{
    LOGGED_WITH("DPRO_NET_PEERS=all", "every_call");
    assert_int_equal(check_pairs(), 3);
    static const struct {
        enum call_direction direction;
        enum call_kind kind;
        uint32_t bytes;
        int n; /* on TCP */
    } expected[] = {
        {DIRECTION_SEND, CALL_WRITE, 1001, 1},    {DIRECTION_RECEIVE, CALL_READ, 1001, 1},
        {DIRECTION_SEND, CALL_WRITEV, 1010, 1},   {DIRECTION_RECEIVE, CALL_READV, 1010, 1},
        {DIRECTION_SEND, CALL_SEND, 1002, 1},     {DIRECTION_RECEIVE, CALL_RECV, 1002, 1},
        {DIRECTION_SEND, CALL_SENDTO, 1003, 1},   {DIRECTION_RECEIVE, CALL_RECVFROM, 1003, 1},
        {DIRECTION_SEND, CALL_SENDMSG, 1010, 1},  {DIRECTION_RECEIVE, CALL_RECVMSG, 1010, 1},
        {DIRECTION_SEND, CALL_SENDMMSG, 2020, 1}, {DIRECTION_RECEIVE, CALL_RECVMMSG, 1200, 1},
        {DIRECTION_SEND, CALL_SENDFILE, 1004, 1}, {DIRECTION_RECEIVE, CALL_READ, 1004, 1},
        {DIRECTION_SEND, CALL_SPLICE, 1005, 1},   {DIRECTION_RECEIVE, CALL_SPLICE, 1005, 1},
        {DIRECTION_SEND, CALL_WRITE, 1006, 1},    {DIRECTION_RECEIVE, CALL_RECV, 1006, 1},
        {DIRECTION_SEND, CALL_WRITE, 1007, 1},    {DIRECTION_RECEIVE, CALL_RECVFROM, 1007, 1},
        {DIRECTION_SEND, CALL_WRITE, 77, 1},      {DIRECTION_RECEIVE, CALL_READ, 77, 1},
    };
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        int n = 0, families = 0;
        for (int k = 0; k < the_log.n_calls; k++) {
            const struct record_call *call = &the_log.calls[k];
            if (call->direction == expected[i].direction && call->call == expected[i].kind &&
                call->returned == expected[i].bytes) {
                n++;
                families |= 1 << the_log.connections[call->connection].family;
            }
        }
        bool tcp_only = expected[i].kind == CALL_RECVMMSG;
        assert_int_equal(n, tcp_only ? 2 : 3);
        assert_int_equal(families,
                         1 << FAMILY_IPV4 | 1 << FAMILY_IPV6 | (tcp_only ? 0 : 1 << FAMILY_UNIX));
    }
    assert_int_equal(the_log.header.pid, last_pid);
    assert_true(the_log.n_anchors >= 2);
}

/* Of all connections. */
static uint64_t all_sent(void)
{
    uint64_t n = 0;
    for (uint32_t i = 1; i < MAX_CONNECTIONS; i++)
        n += the_log.totals[i].sent_bytes;
    return n;
}

static uint64_t all_received(void)
{
    uint64_t n = 0;
    for (uint32_t i = 1; i < MAX_CONNECTIONS; i++)
        n += the_log.totals[i].received_bytes;
    return n;
}

/* The only connection's bytes. */
static uint64_t sent_once(void)
{
    assert_int_equal(check_pairs(), 1);
    return all_sent();
}

CASE(what_moves_on_one_connection_is_recorded_once)
{
    static const struct {
        const char *scenario;
        uint64_t bytes;
    } cases[] = {
        {"nothing_moved", 300}, /* what moves nothing leaves offsets and errno alone */
        {"duplicates", 50},     /* of descriptors share one stream */
        {"connect_again", 8},      {"library", 16}, /* one that is loaded later */
        {"constructors", 8},       {"leave_at_once", 8},
        {"cancelled_reader", 300}, /* in a known order, but for the first perhaps */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        LOGGED(cases[i].scenario, getenv("DPRO_LATE"));
        assert_int_equal(sent_once(), cases[i].bytes);
    }
}

CASE(partial_writes_count_what_was_written)
{
    LOGGED("partial_writes");
    assert_true(sent_once() >= 20u << 20);
}

CASE(a_descriptor_closed_unseen_and_reused_is_a_new_connection)
{
    LOGGED("reuse");
    assert_int_equal(check_pairs(), 2);
}

CASE(a_file_with_a_dead_connections_number_is_not_recorded)
{
    LOGGED("reuse_unseen");
    for (int i = 0; i < the_log.n_calls; i++)
        assert_int_equal(the_log.calls[i].returned, 10);
}

CASE(closing_many_descriptors_at_once_ends_their_connections)
{
    LOGGED("close_many");
    assert_int_equal(check_pairs(), 4);
    int n_closed = 0;
    for (uint32_t i = 1; i < MAX_CONNECTIONS; i++)
        n_closed += the_log.totals[i].closed;
    assert_int_equal(n_closed, 4);
}

/* ---- threads and signals ---- */

CASE(a_thread_that_never_rests_is_made_to_sleep_and_no_other)
{
    assert_int_equal(JOB("yields"), 0);
}

struct message {
    uint32_t thread, number, filler[2];
};

/* Every record's bytes must be its thread's own messages, in order. */
static void check_order(const char *scenario)
{
    enum { N = 8 * 2000 };
    static struct message all[N];
    assert_int_equal(JOB(scenario, file), 0);
    assert_true(read_all_log());
    FILE *in = fopen(file, "rb");
    assert_non_null(in);
    assert_int_equal(fread(all, sizeof *all, N, in), N);
    fclose(in);
    int n = 0, n_unknown = 0;
    static bool seen[N];
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < the_log.n_calls; i++) {
        const struct record_call *call = &the_log.calls[i];
        if (call->direction != DIRECTION_SEND)
            continue;
        assert_int_equal(call->returned, sizeof *all);
        assert_int_equal(call->offset % sizeof *all, 0);
        uint64_t at = call->offset / sizeof *all;
        assert_true(at < N && !seen[at]);
        seen[at] = true;
        n++;
        if (call->flags & CALL_ORDER_UNKNOWN)
            n_unknown++;
        else
            assert_int_equal(all[at].thread, call->head.thread);
    }
    assert_int_equal(n, N);
    assert_true(n_unknown < N / 100); /* a machine where threads lose their core for long */
}

CASE(the_order_of_concurrent_writers_is_the_kernels)
{
    check_order("writers_blocking");
    check_order("writers_nonblocking");
}

CASE(a_thread_asleep_in_a_call_holds_up_no_other)
{
    LOGGED("sleeping_reader");
    assert_int_equal(the_log.lost[LOSS_FRAMING], 0);
}

CASE(signal_handlers_may_write_to_the_connection_they_interrupt)
{
    LOGGED("signal_handlers");
    assert_int_equal(all_sent(), all_received());
    assert_true(all_sent() > 200000);
}

CASE(two_hundred_threads_are_recorded)
{
    LOGGED("many_threads");
    assert_int_equal(check_pairs(), 201);
    assert_true(the_log.n_calls >= 201 * 100);
}

CASE(ten_thousand_descriptors_fit_into_sixteen_megabytes)
{
    int status = JOB("many_descriptors");
    if (status == 77) {
        print_message("no right to 10,000 descriptors\n");
        skip();
    }
    assert_int_equal(status, 0);
    assert_true(read_all_log());
    assert_int_equal(the_log.lost[LOSS_NO_CONNECTION], 0);
    assert_int_equal(the_log.n_calls, 5000 * 3 * 2);
}

CASE(connections_that_come_and_go_use_little_memory)
{
    LOGGED("short_connections");
    assert_int_equal(the_log.lost[LOSS_NO_CONNECTION], 0);
    assert_int_equal(the_log.n_calls, 14000);
    for (int i = 0; i < the_log.n_calls; i++)
        assert_int_not_equal(the_log.connections[the_log.calls[i].connection].connection, 0);
}

/* ---- processes ---- */

CASE(children_of_all_kinds_leave_their_parents_connections_alone)
{
    LOGGED("children");
    assert_int_equal(check_pairs(), 2);
    assert_int_equal(count_files(),
                     1 + 20); /* each forked child talked on a connection of its own */
}

CASE(an_inherited_connection_is_found_by_the_next_program)
{
    assert_int_equal(JOB("inherit"), 0);
    assert_int_equal(count_files(), 2);
    char command[400];
    assert_true(read_all_log());
    assert_int_equal(all_received(), 25);
    snprintf(command, sizeof command, "rm %s/net-*-%d.log; mv %s/net-*.log %s", out, (int)last_pid,
             out, file);
    assert_int_equal(system(command), 0);
    assert_true(read_log_at(file));
    assert_int_equal(the_log.n_calls, 1);
    assert_int_equal(the_log.calls[0].returned, 9);
    const struct record_connection *c = &the_log.connections[the_log.calls[0].connection];
    assert_int_equal(c->origin, ORIGIN_FOUND);
    assert_int_equal(c->flags & CONNECTION_WHOLE, 0);
}

CASE(a_connection_received_from_a_process_is_found)
{
    LOGGED("pass_a_descriptor");
    assert_int_equal(all_sent(), 44);
    assert_int_equal(all_received(), 44);
}

CASE(a_killed_process_leaves_a_readable_log)
{
    int ends[2], status;
    char ready[6];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = start((const char *[]){getenv("DPRO_TRACED"), "wait_to_be_killed", NULL}, ends[1]);
    close(ends[1]);
    assert_int_equal(read(ends[0], ready, 6), 6);
    close(ends[0]);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(read_all_log());
    assert_true(the_log.n_calls >= 2); /* those before it slept */
    assert_true(the_log.n_connections >= 2);
}

/* ---- what is recorded when ---- */

CASE(nothing_is_written_unless_asked_for)
{
    assert_int_equal(JOB("no_sockets"), 0);
    assert_int_equal(count_files(), 0);
    assert_int_equal(RUN("/bin/true"), 0);
    assert_int_equal(RUN("/bin/sh", "-c", "ls / | sort >/dev/null; exit 3"), 3);
    assert_int_equal(count_files(), 0);
    setenv("DPRO", "0", 1);
    assert_int_equal(JOB("not_allowed", file), 0);
    setenv("DPRO", "1", 1);
    setenv("DPRO_NET", "off", 1);
    assert_int_equal(JOB("not_allowed", file), 0);
    setenv("DPRO_NET", "window", 1);
    assert_int_equal(JOB("talk_a_little"), 0);
    unsetenv("DPRO");
    unsetenv("DPRO_NET");
    assert_int_equal(count_files(), 0);
    assert_int_not_equal(access(file, F_OK), 0);
}

CASE(a_window_holds_what_happened_in_it)
{
    JOB_WITH("DPRO_NET=window", "window", file);
    assert_true(read_log_at(file));
    assert_int_equal(the_log.header.rank, 3);
    assert_int_equal(sent_once(), 8);
    assert_int_equal(count_files(), 0);
}

CASE(peers_are_kept_by_address)
{
    static const struct {
        const char *peers;
        bool kept;
    } cases[] = {
        {"job", true}, {"192.0.2.7,127.0.0.1", true}, {"192.0.2.7", false}, {"127.0.0.10", false},
        {"all", true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char setting[80];
        snprintf(setting, sizeof setting, "DPRO_NET_PEERS=%s", cases[i].peers);
        JOB_WITH(setting, "talk_a_little");
        assert_int_equal(read_all_log(), cases[i].kept);
    }
}

CASE(gloo_messages_are_known_where_recording_starts_in_a_payload)
{
    JOB_WITH("DPRO_NET=window", "gloo", file);
    assert_true(read_log_at(file));
    assert_int_equal(the_log.header.rank, 5);
    assert_int_equal(the_log.lost[LOSS_FRAMING], 0);
    assert_int_equal(the_log.n_gloo, 4); /* two messages, both ends */
    for (int i = 0; i < 4; i++) {
        const struct record_gloo *g = &the_log.gloo[i];
        assert_int_equal(g->opcode, g->position == 8 + 96 + 70000 ? 2 : 1);
        assert_true(g->position == 8 + 96 + 70000 || g->position == 8 + 96 + 70000 + 48);
        assert_int_equal(g->slot, (uint64_t)4 << 56 | 2 << 24);
        assert_int_equal(g->length, 10);
        assert_int_equal(the_log.connections[g->connection].protocol, PROTOCOL_GLOO);
    }
    for (int i = 0; i < the_log.n_calls; i++)
        assert_true(the_log.calls[i].offset >= 8 + 96 + 30000);
}

CASE(zeromq_frames_are_recorded_with_ps_lites_meta_and_keys)
{
    LOGGED("zeromq");
    assert_int_equal(check_pairs(), 1);
    int n = 0;
    for (int i = 0; i < the_log.n_zmtp; i++) {
        const struct record_zmtp *z = &the_log.zmtp[i];
        assert_int_equal(the_log.connections[z->connection].protocol, PROTOCOL_ZMTP);
        if (z->flags & ZMTP_COMMAND)
            continue;
        static const uint64_t lengths[] = {5, 16, 512, 4};
        assert_int_equal(z->length, lengths[z->index]);
        if (z->index == 0)
            assert_memory_equal(z->body, "hello", 5);
        assert_int_equal(z->n_body, z->index < 2 ? z->length : 0);
        n++;
    }
    assert_int_equal(n, 8); /* four frames, both ends */
    assert_int_equal(the_log.n_zmtp, 12);
}

CASE(a_log_of_the_newest_calls_knows_their_connections)
{
    char path[512], host[65] = "";
    struct stat st, old;
    JOB_WITH("DPRO_NET_MAX_MB=2 DPRO_NET_KEEP=newest DPRO_NET_PEERS=all", "talk_long");
    gethostname(host, sizeof host - 1);
    snprintf(path, sizeof path, "%s/net-%s-%d.log", out, host, (int)last_pid);
    assert_int_equal(stat(path, &st), 0);
    assert_true(read_all_log());
    assert_true(the_log.lost[LOSS_LOG_FULL] > 0);
    assert_int_equal(the_log.n_connections, 2);
    assert_true(the_log.header.segment > 0);
    uint64_t last = 0;
    for (int i = 0; i < the_log.n_calls; i++)
        last = the_log.calls[i].offset > last ? the_log.calls[i].offset : last;
    assert_int_equal(last, 8 * (30000 - 1));
    strcat(path, ".old");
    assert_int_equal(stat(path, &old), 0);
    assert_true(st.st_size + old.st_size <= 2 << 20);
    assert_true(read_log_at(path));
    assert_int_equal(the_log.n_connections, 2);
}

CASE(a_full_log_keeps_the_oldest_calls)
{
    LOGGED_WITH("DPRO_NET_MAX_MB=1 DPRO_NET_PEERS=all", "talk_long");
    assert_true(the_log.whole && the_log.n_bytes <= 1 << 20);
    assert_int_equal(the_log.calls[0].offset, 0);
    assert_true(the_log.n_calls > 15000);
    assert_true(the_log.lost[LOSS_LOG_FULL] > 30000);
}

CASE(a_folder_that_can_not_be_made_stops_nothing)
{
    FILE *in_the_way = fopen(out, "w");
    assert_non_null(in_the_way);
    fclose(in_the_way);
    assert_int_equal(JOB("talk_a_little"), 0);
}

CASE(only_hooks_and_control_functions_are_exported)
{
    static const char names[] = /* the last is traceme.c's */
        " "
        "read __read_chk readv recv __recv_chk recvfrom __recvfrom_chk recvmsg "
        "recvmmsg write writev send sendto sendmsg sendmmsg sendfile sendfile64 splice "
        "close close_range closefrom fclose dup dup2 dup3 fcntl fcntl64 socket "
        "socketpair connect accept accept4 sched_yield _exit _Exit dpro_tracer_start "
        "dpro_tracer_stop dpro_tracer_mark dpro_tracer_stats dpro_tracer_ease "
        "dpro_traceme_start dpro_traceme_stop dpro_traceme_stats "
        "_ZN3tsl8profiler15TraceMeRecorder6RecordEONS1_5EventE ";
    char command[600], line[200], word[200];
    size_t n = 0, n_names = 0;
    snprintf(command, sizeof command, "nm -D --defined-only '%s'", getenv("DPRO_TRACER"));
    FILE *nm = popen(command, "r");
    while (fgets(line, sizeof line, nm)) {
        char *name = strrchr(line, ' ') + 1;
        name[strcspn(name, "@\n")] = '\0';
        snprintf(word, sizeof word, " %s ", name);
        if (!strstr(names, word))
            fail_msg("%s is exported", name);
        n++;
    }
    for (const char *at = names + 1; *at; at++)
        n_names += *at == ' ';
    assert_int_equal(pclose(nm), 0);
    assert_int_equal(n, n_names);
}
