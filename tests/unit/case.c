#include "case.h"

#include <stdlib.h>

static struct CMUnitTest tests[100];
static size_t n_tests;

void add_test(const char *name, CMUnitTestFunction test, CMFixtureFunction setup,
              CMFixtureFunction teardown)
{
    if (n_tests == sizeof tests / sizeof *tests)
        abort();
    tests[n_tests++] = (struct CMUnitTest){name, test, setup, teardown, NULL};
}

int run_cases(CMFixtureFunction setup, CMFixtureFunction teardown)
{
    return _cmocka_run_group_tests("tests", tests, n_tests, setup, teardown);
}

/* Weak: a program may have its own. */
__attribute__((weak)) int main(void)
{
    return run_cases(NULL, NULL);
}
