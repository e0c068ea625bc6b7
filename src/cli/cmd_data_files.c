/* cmd_data_files.c -- patterns are opened here as data.text of a run file opens them, so that the same words name the same
 * text everywhere. A file whose name has a * in it is that file. */
#include "cli/cmd_data_files.h"

#include "cli/cmd_data.h"
#include "base/file.h"
#include "base/mem.h"

static ls_status add(ls_cmd_data_files *f, const char *name)
{
    int count = 1;

    if (strncmp(name, "builtin:", 8) != 0 && !ls_file_exists(name) && strpbrk(name, "*?[")) {
        ls_status st = ls_file_glob(name, &f->text, &count);
        if (st != LS_OK)
            return st == LS_ENOMEM ? st : ls_fail(LS_EUSAGE, "no file matches \"%s\"", name);
    } else {
        if (strncmp(name, "builtin:", 8) != 0 && ls_cmd_data_need_file(name) != LS_OK)
            return LS_EUSAGE;
        ls_str_append_bytes(&f->text, name, strlen(name) + 1);
    }
    f->count += count;
    return ls_str_status(&f->text);
}

ls_status ls_cmd_data_files_open(ls_cmd_data_files *files, const ls_args *args)
{
    ls_status st = LS_OK;

    *files = (ls_cmd_data_files){.count = 0};
    ls_str_init(&files->text);
    for (int i = 0; i < args->n_rest; i++)
        LS_TRY(st, add(files, args->rest[i]), out);
    files->items = ls_mem_array((size_t)files->count, sizeof *files->items);
    if (!files->items)
        return LS_ENOMEM;
    const char *p = files->text.p;
    for (int i = 0; i < files->count; i++, p += strlen(p) + 1)
        files->items[i] = p;
out:
    return st;
}

void ls_cmd_data_files_release(ls_cmd_data_files *files)
{
    ls_mem_free((void *)files->items);
    ls_str_release(&files->text);
}
