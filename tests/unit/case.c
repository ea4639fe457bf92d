#include "case.h"

#include <stdlib.h>
#include <string.h>

static struct CMUnitTest tests[100];
static size_t n_tests;

static struct kept {
    void *object;
    void (*destroy)(void *object);
    struct kept *before;
} * kept;

static int free_kept(void **state)
{
    while (kept) {
        struct kept *last = kept;
        kept = last->before;
        last->destroy(last->object);
        free(last);
    }
    return 0;
}

void add_test(const char *name, CMUnitTestFunction test, CMFixtureFunction setup,
              CMFixtureFunction teardown)
{
    if (n_tests == sizeof tests / sizeof *tests)
        abort();
    tests[n_tests++] =
        (struct CMUnitTest){name, test, setup, teardown ? teardown : free_kept, NULL};
}

int run_cases(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    int n_failed = _cmocka_run_group_tests("tests", tests, n_tests, setup, teardown);
    free_kept(NULL);
    return n_failed;
}

void keep(void *object, void (*destroy)(void *object))
{
    struct kept *last = malloc(sizeof *last);
    if (!last)
        abort();
    *last = (struct kept){object, destroy, kept};
    kept = last;
}

void *kept_memory(size_t n, size_t size)
{
    void *memory = calloc(n + 1, size);
    if (!memory)
        abort();
    keep(memory, free);
    return memory;
}

const char *json_text(const char *text)
{
    size_t n = strlen(text);
    char *copy = kept_memory(n + 1, 1);
    for (size_t i = 0; i < n; i++)
        copy[i] = (char)(text[i] == '\'' ? '"' : text[i]);
    return copy;
}

/* Weak: a program may have its own. */
__attribute__((weak)) int main(void)
{
    return run_cases(NULL, NULL);
}
