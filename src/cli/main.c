/* main.c -- the entry; everything is in dispatch.c, where tests reach it. */
#include "cli/dispatch.h"

int main(int argc, char **argv)
{
    return ls_dispatch_main(argc, (const char *const *)argv);
}
