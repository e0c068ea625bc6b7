/* banned.h -- functions that this project does not use, turned into compile errors.
 *
 * Each has a safe counterpart: ls_str_printf() or snprintf() for sprintf and friends,
 * ls_str_append() for strcat, strtoll() or the option parser for atoi, base/rng.h for rand. */
#pragma once
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef __cplusplus
#pragma GCC poison strcpy strcat sprintf vsprintf strtok atoi atol atof rand srand gets
#endif
