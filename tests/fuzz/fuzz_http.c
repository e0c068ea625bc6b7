/* fuzz_http.c -- the head of a request is any bytes: it is refused, or every text in it ends inside. */
#include <stdlib.h>
#include <string.h>
#include "net/http_request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static size_t seen;

static void look(const char *text)
{
    seen += strlen(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    size_t head;
    ls_http_request request;
    const char *why = "";
    char value[16];

    if (!text)
        return 0;
    memcpy(text, data, size);
    head = ls_http_request_head(text, size);
    if (head > size)
        abort();
    if (head && ls_http_request_parse(&request, text, head, &why) == 0) {
        look(request.method);
        look(request.path);
        for (int i = 0; i < request.n_headers; i++) {
            look(request.headers[i].name);
            look(request.headers[i].value);
        }
        if (*request.path != '/' || request.body_len < 0)
            abort();
        ls_http_request_parameter(&request, "a", value, sizeof value);
        ls_http_request_cookie(&request, "a", value, sizeof value);
    }
    free(text);
    return 0;
}
