/* optimizer.c -- the table of optimizer.h as an array. */
#include "config/optimizer.h"

static const ls_optimizer_facts table[LS_OPTIMIZER_COUNT] = {
#define FACTS(id, in_run_file, doc, ...) [LS_OPTIMIZER_##id] = {.name = #in_run_file, __VA_ARGS__},
    LS_OPTIMIZERS(FACTS)
#undef FACTS
};

const ls_optimizer_facts *ls_optimizer_of(ls_optimizer kind)
{
    return &table[kind];
}

bool ls_optimizer_is_elementwise(ls_optimizer kind)
{
    return table[kind].reach == LS_REACH_ELEMENT;
}
