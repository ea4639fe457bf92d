/* Joining and leaving other processes, and turns of speaking. */
#include "base/processes.h"

#include <dlfcn.h>
#include <link.h>
#include <unistd.h>

#include "base/mpi_module.h"

int dpro_processes_started(void)
{
    const char *n = getenv("OMPI_COMM_WORLD_SIZE"), *number = getenv("OMPI_COMM_WORLD_RANK");
    number = number ? number : getenv("PMIX_RANK");
    return !number || (n && strcmp(n, "1") == 0) ? -1 : atoi(number);
}

/* ---- joining ---- */

/* Structs travel as they lie in memory, and texts of the program, too. */
struct identity {
    uint64_t build;
    char host[64];
};

/* What this program is made of: all of it that is not written to. */
__attribute__((no_sanitize("address"))) static int
hash_program(struct dl_phdr_info *object, size_t size __attribute__((unused)), void *hash)
{
    const char *me = (const char *)&hash_program;
    bool is_mine = false;
    EACH_OF (const ElfW(Phdr), part, object->dlpi_phdr, object->dlpi_phnum) {
        const char *at = (const char *)object->dlpi_addr + part->p_vaddr;
        is_mine |= part->p_type == PT_LOAD && at <= me && me < at + part->p_memsz;
    }
    EACH_OF (const ElfW(Phdr), part, object->dlpi_phdr, object->dlpi_phnum) {
        const char *at = (const char *)object->dlpi_addr + part->p_vaddr;
        bool fixed = part->p_type == PT_LOAD && (part->p_flags & (PF_R | PF_W)) == PF_R;
        for (size_t i = 0; is_mine && fixed && i < part->p_filesz; i++)
            *(uint64_t *)hash = (*(uint64_t *)hash ^ (unsigned char)at[i]) * 0x100000001b3u;
    }
    return is_mine;
}

static struct identity processes_identify(void)
{
    struct identity own = {.build = 0x9e3779b97f4a7c15u};
    dl_iterate_phdr(hash_program, &own.build);
    gethostname(own.host, sizeof own.host - 1);
    return own;
}

/* Each helper's turn, before any other. */
static int check_builds(struct dpro_processes *p, struct dpro_error *err)
{
    struct identity own = processes_identify(), other = own;
    struct pack pack = {0};
    int stranger = 0;
    if (p->me > 0) {
        processes_tell(p, &pack);
        PACK(&pack, own);
        if (processes_told(p, &pack))
            processes_end(&pack);
        return 0;
    }
    for (int helper = p->n - 1; helper > 0; helper--) {
        struct identity heard = {.build = 0};
        processes_hear(p, helper, &pack);
        if (pack.n == pack.at + sizeof heard)
            PACK(&pack, heard);
        processes_end(&pack);
        p->n_beside += memcmp(heard.host, own.host, sizeof own.host) == 0;
        if (heard.build != own.build) {
            stranger = helper;
            other = heard;
        }
    }
    other.host[sizeof other.host - 1] = '\0';
    if (stranger > 0)
        return dpro_error_set(err, DPRO_EPEER,
                              "process %d of mpirun, on %s, runs another build of dpro than the "
                              "first, on %s; install the same on all machines",
                              stranger, other.host, own.host);
    for (int helper = 1; helper < p->n; helper++) {
        processes_answer(p, helper, &pack);
        processes_end(&pack);
    }
    return 0;
}

static void processes_await(sem_t *sem)
{
    while (sem_wait(sem) != 0)
        ;
}

static void *run_mpi(void *processes)
{
    struct dpro_processes *p = processes;
    p->rc = p->mpi->join();
    sem_post(&p->begun);
    processes_await(&p->over);
    if (p->rc == 0)
        p->mpi->leave();
    return NULL;
}

/* Whether there are others to speak to. */
static bool processes_begins(struct dpro_processes *p)
{
    if (!p->has_begun)
        processes_await(&p->begun);
    p->has_begun = true;
    return p->rc == 0;
}

int processes_meet(struct dpro_processes *p, struct dpro_error *err)
{
    if (p->has_met)
        return 0;
    p->has_met = true;
    if (processes_begins(p))
        return check_builds(p, err);
    p->is_over = true;
    return dpro_error_set(err, DPRO_EPEER, "MPI does not start; try 'mpirun -n 2 hostname'");
}

static int processes_join(const char *path, int (*failed)(const char *text),
                          struct dpro_processes **processes, struct dpro_error *err)
{
    const char *n = getenv("OMPI_COMM_WORLD_SIZE");
    dlopen("libmpi.so.40", RTLD_NOW | RTLD_GLOBAL); /* a wheel's module does not name it */
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return dpro_error_set(err, DPRO_EIO, "cannot load the module for mpirun: %s", dlerror());
    mpi_module_start *start = (mpi_module_start *)dlsym(library, MPI_MODULE_START);
    const struct mpi_module *mpi = start ? start(failed) : NULL;
    if (!mpi || mpi->version != MPI_MODULE_VERSION)
        return dpro_error_set(err, DPRO_EIO,
                              "%s: of another version of dpro; install both from one build", path);
    struct dpro_processes *made = mem_array(1, sizeof *made);
    made->mpi = mpi;
    made->me = dpro_processes_started();
    sem_init(&made->begun, 0, 0);
    sem_init(&made->over, 0, 0);
    if (pthread_create(&made->thread, NULL, run_mpi, made) != 0)
        mem_fail();
    made->n = n ? atoi(n) : processes_begins(made) ? mpi->n : 1;
    made->answers = mem_array((size_t)made->n, sizeof *made->answers);
    *processes = made;
    return 0;
}

int dpro_processes_join(const char *module, int (*failed)(const char *text),
                        struct dpro_processes **processes, struct dpro_error *err)
{
    return WITHIN_SCOPE(dpro_error_nomem(err), processes_join(module, failed, processes, err));
}

int dpro_processes_number(const struct dpro_processes *processes)
{
    return processes ? processes->me : 0;
}

int dpro_processes_threads(const struct dpro_processes *p, int threads)
{
    return threads > 0 && p && p->has_ended ? threads * (1 + p->n_beside) : threads;
}

int processes_count(const struct dpro_processes *processes)
{
    return processes && !processes->is_over ? processes->n : 1;
}

/* ---- turns ---- */

static void tell_progress(void *processes)
{
    const struct dpro_processes *p = processes;
    log_progress(&p->sink, "wait for the other processes", "processes", p->n_heard,
                 (uint64_t)p->n - 1);
}

static void processes_pass(struct pack *pack)
{
    struct dpro_processes *p = pack->other;
    if (pack->reading) {
        pack->n = p->mpi->take(pack->peer, pack->piece, PACK_PIECE, tell_progress, p);
        pack->at = 0;
        p->n_received += pack->n;
    } else {
        p->mpi->give(pack->peer, pack->piece, pack->n);
        pack->n = 0;
    }
}

/* A message begins with a byte: one of no bytes lets a helper go. */
static void processes_begin(struct dpro_processes *p, int peer, bool reading, struct pack *pack)
{
    *pack = (struct pack){.reading = reading,
                          .piece = mem_alloc(PACK_PIECE),
                          .arena = pack->arena,
                          .pass = processes_pass,
                          .other = p,
                          .peer = peer};
    if (reading)
        processes_pass(pack);
    else
        pack->piece[pack->n++] = 0;
    pack->at = pack->n > 0;
}

void processes_end(struct pack *pack)
{
    bool goes_on = true;
    while (goes_on) {
        goes_on = pack->n == PACK_PIECE;
        if (goes_on || !pack->reading)
            processes_pass(pack);
    }
    mem_free(pack->piece);
    pack->piece = NULL;
}

bool processes_tell(struct dpro_processes *p, struct pack *pack)
{
    if (!p->is_over)
        processes_begin(p, 0, false, pack);
    return !p->is_over;
}

bool processes_told(struct dpro_processes *p, struct pack *pack)
{
    processes_end(pack);
    processes_begin(p, 0, true, pack);
    p->is_over = pack->n == 0;
    if (p->is_over)
        processes_end(pack);
    return !p->is_over;
}

void processes_hear(struct dpro_processes *p, int helper, struct pack *pack)
{
    p->n_heard = (uint64_t)helper - 1;
    processes_begin(p, helper, true, pack);
    p->n_heard++;
    p->answers[helper] = true;
    tell_progress(p);
}

void processes_answer(struct dpro_processes *p, int helper, struct pack *pack)
{
    p->answers[helper] = false;
    processes_begin(p, helper, false, pack);
}

/* MPI ends in all processes at once. */
static void base_processes_end(struct dpro_processes *p)
{
    if (!p->has_ended)
        sem_post(&p->over);
    p->has_ended = p->is_over = true;
}

void processes_let_go(struct dpro_processes *p)
{
    for (int helper = 1; !p->has_ended && processes_begins(p) && helper < p->n; helper++) {
        struct pack unwanted = {0};
        if (!p->answers[helper]) {
            processes_hear(p, helper, &unwanted);
            processes_end(&unwanted);
        }
        p->mpi->give(helper, "", 0);
    }
    base_processes_end(p);
}

void processes_go_alone(struct dpro_processes *p, const char *why)
{
    processes_let_go(p);
    p->idle = why;
}

const char *dpro_processes_idle(const struct dpro_processes *p)
{
    return p ? p->idle : NULL;
}

void dpro_processes_leave(struct dpro_processes *p)
{
    struct dpro_error unsaid;
    struct pack pack = {0};
    if (!p)
        return;
    if (p->me == 0)
        processes_let_go(p);
    else if (processes_meet(p, &unsaid) == 0 && processes_tell(p, &pack) &&
             processes_told(p, &pack))
        processes_end(&pack);
    base_processes_end(p);
    pthread_join(p->thread, NULL);
    sem_destroy(&p->begun);
    sem_destroy(&p->over);
    FREE_ALL(&p->answers, &p);
}

void dpro_processes_abort(struct dpro_processes *p, int code)
{
    if (processes_begins(p))
        p->mpi->abort(code);
}
