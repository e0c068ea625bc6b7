/* mesh_choice_print.c -- a choice of meshes, for people and for programs. */
#include "plan/mesh_choice.h"

#include "base/time.h"
#include "config/option.h"

static const char *recompute_name(const ls_mesh_choice_row *row)
{
    return ls_option_find("train.recompute")->names[row->recompute];
}

static double ms(double ns)
{
    return ns / 1e6;
}

/* --- what refuses ------------------------------------------------------------------------------
 */

/* Whether two reasons are the same but for their numbers: "4 layers cannot be cut into 8 stages".
 */
static bool same_words(const char *a, const char *b)
{
    static const char digits[] = "0123456789";

    while (*a && *b) {
        size_t na = strspn(a, digits), nb = strspn(b, digits);
        if ((na > 0) != (nb > 0) || (na == 0 && *a != *b))
            return false;
        a += na > 0 ? na : 1;
        b += nb > 0 ? nb : 1;
    }
    return *a == *b;
}

static bool is_too_large(const ls_mesh_choice *c, const ls_mesh_choice_row *row)
{
    return row->bytes > c->facts.free_bytes;
}

/* Those that do not fit, the nearest first: three of them. */
static void tell_too_large(const ls_mesh_choice *c, ls_str *out)
{
    enum { SHOWN = 3 };
    const ls_mesh_choice_row *least[SHOWN] = {NULL};
    int n = 0;

    for (int i = c->can; i < c->count; i++) {
        const ls_mesh_choice_row *row = &c->rows[i];
        if (!is_too_large(c, row))
            continue;
        n++;
        for (int k = 0; k < SHOWN; k++)
            if (!least[k] || row->bytes < least[k]->bytes) {
                const ls_mesh_choice_row *next = least[k];
                least[k] = row;
                row = next;
                if (!row)
                    break;
            }
    }
    for (int k = 0; k < SHOWN && least[k]; k++)
        ls_str_printf(out, "  %s: a rank needs %.1f MiB, %.1f are free\n", least[k]->mesh,
                      ls_size_up(least[k]->bytes, LS_MIB),
                      ls_size_down(c->facts.free_bytes, LS_MIB));
    if (n > SHOWN)
        ls_str_printf(out, "  and %d more that need more memory\n", n - SHOWN);
}

static void tell_refused(const ls_mesh_choice *c, ls_str *out)
{
    if (c->can == c->count)
        return;
    ls_str_printf(out, "not taken, %d mesh%s:\n", c->count - c->can,
                  c->count - c->can == 1 ? "" : "es");
    tell_too_large(c, out);
    for (int i = c->can; i < c->count; i++) {
        int like = 0, before = 0;
        for (int k = c->can; k < c->count; k++)
            if (!is_too_large(c, &c->rows[k]) && same_words(c->rows[k].why, c->rows[i].why)) {
                like++;
                before += k < i;
            }
        if (is_too_large(c, &c->rows[i]) || before > 0)
            continue;
        ls_str_printf(out, "  %s", c->rows[i].mesh);
        if (like > 1)
            ls_str_printf(out, " and %d more", like - 1);
        ls_str_printf(out, ": %s\n", c->rows[i].why);
    }
}

/* --- what works --------------------------------------------------------------------------------
 */

/* Why the first row is taken. */
static void tell_why(const ls_mesh_choice *c, ls_str *out)
{
    const ls_mesh_choice_row *first = &c->rows[0], *quickest = first;

    for (int i = 1; i < c->can; i++)
        if (c->rows[i].step_ns < quickest->step_ns)
            quickest = &c->rows[i];
    if (c->can == 1)
        ls_str_printf(out, "%s is taken: %s\n", first->mesh,
                      c->count > 1 ? "nothing else works" : "there is no other");
    else if (quickest != first)
        ls_str_printf(out, "%s is taken: as quick as %s within %.0f %%, and plainer\n", first->mesh,
                      quickest->mesh, 100 * LS_MESH_CHOICE_NEARLY);
    else
        ls_str_printf(out, "%s is taken: it is the quickest; the next needs %.1f %% more\n",
                      first->mesh, 100 * (c->rows[1].step_ns / first->step_ns - 1));
}

static int name_width(const ls_mesh_choice *c, int most)
{
    int width = 28;

    for (int i = 0; i < c->can && i < most; i++)
        width = (int)ls_max_i64(width, (int64_t)strlen(c->rows[i].mesh));
    return width;
}

static void tell_rows(const ls_mesh_choice *c, int most, ls_str *out)
{
    int width = name_width(c, most);

    ls_str_printf(out, "  %-*s %9s %9s %9s %9s %10s  %s\n", width, "mesh", "a step", "computes",
                  "idle", "exchange", "memory", "recompute");
    for (int i = 0; i < c->can && i < most; i++) {
        const ls_mesh_choice_row *r = &c->rows[i];
        const double ns[] = {r->step_ns, r->work_ns, r->idle_ns, r->exchange_ns};
        char text[LS_TIME_TEXT];
        ls_str_printf(out, "%c %-*s", i == 0 ? '>' : ' ', width, r->mesh);
        for (size_t k = 0; k < LS_COUNT(ns); k++)
            ls_str_printf(out, " %9s", ls_time_text(ns[k], text));
        ls_str_printf(out, " %6.0f MiB  %s\n", (double)r->bytes / (double)LS_MIB,
                      recompute_name(r));
    }
    if (c->can > most)
        ls_str_printf(out, "  and %d slower one%s\n", c->can - most, c->can - most == 1 ? "" : "s");
    ls_str_append(out, "a step: what the busiest rank computes, waits for its turn in a "
                       "pipeline (idle), and waits for what others send (exchange)\n");
    tell_why(c, out);
}

void ls_mesh_choice_tell(const ls_mesh_choice *choice, int most, ls_str *out)
{
    const ls_mesh_choice_facts *f = &choice->facts;
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
        tell_rows(choice, most, out);
    tell_refused(choice, out);
}

void ls_mesh_choice_json(const ls_mesh_choice *choice, ls_json *json)
{
    const ls_mesh_choice_facts *f = &choice->facts;

    ls_json_put_str(json, "mesh", choice->can > 0 ? choice->rows[0].mesh : "");
    ls_json_put_int(json, "ranks", f->ranks);
    ls_json_put_int(json, "ranks_per_node", f->per_node);
    ls_json_put_int(json, "free_bytes", f->free_bytes);
    ls_json_put_num(json, "gflops", f->gflops);
    ls_json_key(json, "meshes");
    ls_json_open(json, '[');
    for (int i = 0; i < choice->count; i++) {
        const ls_mesh_choice_row *r = &choice->rows[i];
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
