/* The tests of a program. TEST(name) { ... } is one; they run in the order in which they stand. A
 * program that does not only run its tests has a main of its own. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Adds a test; TEST calls it before main. */
void add_test(const char *name, CMUnitTestFunction test, CMFixtureFunction setup,
              CMFixtureFunction teardown);
/* Runs all, between the setup and the teardown of their group (or NULL); returns what main does. */
int run_cases(CMFixtureFunction setup, CMFixtureFunction teardown);
/* Has an object destroyed behind the test, or behind all where the test has a teardown of its own:
 * what tests make need not be freed by them. */
void keep(void *object, void (*destroy)(void *object));
#define KEEP(object, destroy) keep(object, (void (*)(void *))(destroy))
/* Zeroed memory for n things, which is kept. */
void *kept_memory(size_t n, size_t size);

/* The text with " for each ', as tests write JSON; kept. */
const char *json_text(const char *text);

#define TEST(name) TEST_BETWEEN(name, NULL, NULL)
#define TEST_BETWEEN(name, setup, teardown)                                                        \
    static void test_##name(void **test_state);                                                    \
    __attribute__((constructor)) static void add_##name(void)                                      \
    {                                                                                              \
        add_test(#name, test_##name, setup, teardown);                                             \
    }                                                                                              \
    static void test_##name(void **test_state)
