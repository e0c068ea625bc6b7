/* choice_tell.c -- a choice of meshes, for people and for programs. */
#include "plan/choice.h"

#include "base/time.h"
#include "config/option.h"

static const char *recompute_name(const ls_choice_row *row)
{
    return ls_option_find("train.recompute")->names[row->recompute];
}

static double ms(double ns)
{
    return ns / 1e6;
}

/* Whether another row was told already that is refused by the same words. */
static bool is_told(const ls_choice *c, int i)
{
    for (int k = c->can; k < i; k++)
        if (strcmp(c->rows[k].why, c->rows[i].why) == 0)
            return true;
    return false;
}

static int refused_like(const ls_choice *c, int i)
{
    int n = 0;

    for (int k = c->can; k < c->count; k++)
        n += strcmp(c->rows[k].why, c->rows[i].why) == 0;
    return n;
}

static void tell_refused(const ls_choice *c, ls_str *out)
{
    if (c->can == c->count)
        return;
    ls_str_printf(out, "not taken, %d meshes:\n", c->count - c->can);
    for (int i = c->can; i < c->count; i++) {
        int n = refused_like(c, i) - 1;
        if (is_told(c, i))
            continue;
        ls_str_printf(out, "  %s", c->rows[i].mesh);
        if (n > 0)
            ls_str_printf(out, " and %d more", n);
        ls_str_printf(out, ": %s\n", c->rows[i].why);
    }
}

void ls_choice_tell(const ls_choice *choice, int most, ls_str *out)
{
    const ls_choice_facts *f = &choice->facts;
    int nodes = (f->ranks + f->per_node - 1) / f->per_node;

    ls_str_printf(out,
                  "mesh: auto, %d rank%s on %d node%s, %.0f MiB of memory and %.3g Gflop/s for "
                  "each",
                  f->ranks, f->ranks == 1 ? "" : "s", nodes, nodes == 1 ? "" : "s",
                  (double)f->free_bytes / (double)LS_MIB, f->gflops);
    if (nodes > 1)
        ls_str_printf(out, ", %.3g Gbit/s between nodes", 8 / f->between.ns_per_byte);
    ls_str_append_char(out, '\n');
    if (choice->can > 0)
        ls_str_printf(out, "  %-28s %9s %9s %9s %9s %10s  %s\n", "mesh", "a step", "computes",
                      "idle", "exchange", "memory", "recompute");
    for (int i = 0; i < choice->can && i < most; i++) {
        const ls_choice_row *r = &choice->rows[i];
        const double ns[] = {r->step_ns, r->work_ns, r->idle_ns, r->exchange_ns};
        char text[LS_TIME_TEXT];
        ls_str_printf(out, "%c %-28s", i == 0 ? '>' : ' ', r->mesh);
        for (size_t k = 0; k < LS_COUNT(ns); k++)
            ls_str_printf(out, " %9s", ls_time_text(ns[k], text));
        ls_str_printf(out, " %6.0f MiB  %s\n", (double)r->bytes / (double)LS_MIB,
                      recompute_name(r));
    }
    if (choice->can > most)
        ls_str_printf(out, "  and %d slower ones\n", choice->can - most);
    if (choice->can > 0)
        ls_str_append(out, "a step: what the busiest rank computes, waits for its turn in a "
                           "pipeline (idle), and waits for what others send (exchange)\n");
    tell_refused(choice, out);
}

void ls_choice_json(const ls_choice *choice, ls_json *json)
{
    const ls_choice_facts *f = &choice->facts;

    ls_json_put_str(json, "mesh", choice->can > 0 ? choice->rows[0].mesh : "");
    ls_json_put_int(json, "ranks", f->ranks);
    ls_json_put_int(json, "ranks_per_node", f->per_node);
    ls_json_put_int(json, "free_bytes", f->free_bytes);
    ls_json_put_num(json, "gflops", f->gflops);
    ls_json_key(json, "meshes");
    ls_json_open(json, '[');
    for (int i = 0; i < choice->count; i++) {
        const ls_choice_row *r = &choice->rows[i];
        ls_json_open(json, '{');
        ls_json_put_str(json, "mesh", r->mesh);
        if (r->why[0]) {
            ls_json_put_str(json, "refused", r->why);
        } else {
            ls_json_put_num(json, "step_ms", ms(r->step_ns));
            ls_json_put_num(json, "compute_ms", ms(r->work_ns));
            ls_json_put_num(json, "idle_ms", ms(r->idle_ns));
            ls_json_put_num(json, "exchange_ms", ms(r->exchange_ns));
            ls_json_put_str(json, "recompute", recompute_name(r));
        }
        if (r->bytes > 0)
            ls_json_put_int(json, "bytes", r->bytes);
        ls_json_close(json);
    }
    ls_json_close(json);
}
