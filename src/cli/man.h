/* man.h -- the manual page, made from the tables. */
#pragma once
#include "base/str.h"

/* lineshaft(1) as man(7) source. */
void ls_man_page(ls_str *out);
