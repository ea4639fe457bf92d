/* A folder for the files of a test. */
#pragma once

#include "case.h"

extern char folder[64];

/* Set up and tear down a test or a group: make the folder, and remove it with all that is in it. */
int make_folder(void **state);
int remove_folder(void **state);
/* Removes it and fails where something is left in it. */
int remove_empty_folder(void **state);

/* The path of a name in the folder; four of them are valid at a time. */
const char *in_folder(const char *name);

/* Write a file in the folder, and the folders that it lies in; fail the test when that fails. A
 * text is JSON with ' for ". */
void write_bytes(const char *name, const void *data, size_t size);
void write_text(const char *name, const char *text);

#define TEST_IN_FOLDER(name) TEST_BETWEEN(name, make_folder, remove_folder)
