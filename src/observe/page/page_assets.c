/* page_assets.c -- see page_assets.h.
 *
 * web/page.html has two marks, which become
 *
 *                    on the server                       in one file
 *     <!-- head -->  <link href="page.css">              the policy, and the styles
 *     <!-- tail -->  <script src="chart.js"> ...         the data, and one script of all
 *
 * The server sends its policy as a header. In a file the policy names the hashes of the styles and of
 * the script, so that markup which came in with the data could not run even if it were read as such. */
#include "observe/page/page_assets.h"

#include "net/digest.h"

/* The text of a file of this source tree, as a string. */
#define TEXT_OF(name, path)                                                    \
    __asm__(".section .rodata\n.global " #name "\n" #name ":\n.incbin \"" path \
            "\"\n.byte 0\n.previous\n");                                       \
    extern const char name[]
TEXT_OF(ls_page_html, "src/observe/page/web/page.html");
TEXT_OF(ls_page_css, "src/observe/page/web/page.css");
TEXT_OF(ls_page_chart_js, "src/observe/page/web/chart.js");
TEXT_OF(ls_page_panels_js, "src/observe/page/web/panels.js");
TEXT_OF(ls_page_page_js, "src/observe/page/web/page.js");

static const char CSS[] = "text/css; charset=utf-8", JS[] = "text/javascript; charset=utf-8";

const ls_page_asset ls_page_assets[] = {
    {"/page.css", CSS, ls_page_css},
    {"/chart.js", JS, ls_page_chart_js},
    {"/panels.js", JS, ls_page_panels_js},
    {"/page.js", JS, ls_page_page_js},
    {NULL, NULL, NULL},
};

/* The frame with its two marks replaced. */
static void fill_frame(const char *head, const char *tail, ls_str *out)
{
    static const char HEAD[] = "<!-- head -->", TAIL[] = "<!-- tail -->";
    const char *at = strstr(ls_page_html, HEAD), *end = at ? strstr(at, TAIL) : NULL;

    LS_BUG_IF(!end, "web/page.html lacks a mark");
    ls_str_append_bytes(out, ls_page_html, (size_t)(at - ls_page_html));
    ls_str_append(out, head);
    at += sizeof HEAD - 1;
    ls_str_append_bytes(out, at, (size_t)(end - at));
    ls_str_append(out, tail);
    ls_str_append(out, end + sizeof TAIL - 1);
}

void ls_page_assets_served(ls_str *html_out)
{
    ls_str scripts;

    ls_str_init(&scripts);
    for (const ls_page_asset *a = ls_page_assets; a->path; a++)
        if (a->type == JS)
            ls_str_printf(&scripts, "<script src=\"%s\"></script>\n", a->path + 1);
    fill_frame("<link rel=\"stylesheet\" href=\"page.css\">", scripts.p, html_out);
    html_out->failed |= scripts.failed;
    ls_str_release(&scripts);
}

/* SHA-256 in base64, as a policy names a script. */
static ls_status put_hash(const ls_str *text, ls_str *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t d[LS_DIGEST_BYTES + 1] = {0};
    ls_status st = ls_digest_bytes(text->p, text->len, d);

    if (st != LS_OK)
        return st;
    ls_str_append(out, "'sha256-");
    for (int i = 0; i < LS_DIGEST_BYTES; i += 3) { /* 32 bytes: the last group has two */
        unsigned bits = (unsigned)d[i] << 16 | (unsigned)d[i + 1] << 8 |
                        (i + 2 < LS_DIGEST_BYTES ? (unsigned)d[i + 2] : 0);
        for (int k = 0; k < 4; k++)
            ls_str_append_char(out, digits[bits >> (18 - 6 * k) & 63]);
    }
    out->p[out->len - 1] = '='; /* two bytes give three digits */
    ls_str_append_char(out, '\'');
    return ls_str_status(out);
}

ls_status ls_page_assets_alone(const ls_str *data, ls_str *html_out)
{
    ls_str script, style, head, tail;
    ls_status st;

    ls_str_init(&script);
    ls_str_init(&style);
    ls_str_init(&head);
    ls_str_init(&tail);
    ls_str_append(&style, ls_page_css);
    for (const ls_page_asset *a = ls_page_assets; a->path; a++)
        if (a->type == JS)
            ls_str_append(&script, a->text);
    LS_TRY(st, ls_str_status(&script), out);
    ls_str_append(&head, "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src "
                         "'none'; base-uri 'none'; form-action 'none'; script-src ");
    LS_TRY(st, put_hash(&script, &head), out);
    ls_str_append(&head, "; style-src ");
    LS_TRY(st, put_hash(&style, &head), out);
    ls_str_printf(&head, "\">\n<style>%s</style>", style.p);
    ls_str_append(&tail, "<script type=\"application/json\" id=\"data\">");
    ls_str_append_bytes(&tail, data->p, data->len);
    ls_str_printf(&tail, "</script>\n<script>%s</script>\n", script.p);
    LS_TRY(st, ls_str_status(&head), out);
    LS_TRY(st, ls_str_status(&tail), out);
    fill_frame(head.p, tail.p, html_out);
    st = ls_str_status(html_out);
out:
    ls_str_release(&script);
    ls_str_release(&style);
    ls_str_release(&head);
    ls_str_release(&tail);
    return st;
}
