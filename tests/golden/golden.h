/* golden.h -- texts that are reviewed like code: tests/golden holds them, a test compares.
 *
 * LINESHAFT_GOLDEN=write in the environment writes what the program says today instead; look at the
 * difference before you commit it. */
#pragma once
#include "base/str.h"

/* Fail the test unless got equals the file at path, relative to the project's root. how says what
 * renews the file. */
void ls_golden_check(const char *path, const ls_str *got, const char *how);

/* The file's text, "" when it does not exist. */
void ls_golden_read(const char *path, ls_str *text_out);
