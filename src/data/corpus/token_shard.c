/* token_shard.c -- opening, checking and reading a shard.
 *
 * The file may come from anywhere, so nothing in it is believed: the checksum finds damage, but an
 * attacker can compute it over a hostile header, so every number is then checked against the length
 * of the file with arithmetic that cannot overflow. Document starts and ids are too many to check
 * at open; reading clamps the first and checks the second as it copies. */
#include "data/corpus/token_shard.h"

#include "data/corpus/token_shard_impl.h"
#include "base/mem.h"

static ls_status refuse(const ls_token_shard *shard, const char *what)
{
    return ls_fail(LS_EDATA, "\"%s\" %s", shard->path, what);
}

static ls_status refuse_rebuild(const ls_token_shard *shard, const char *what)
{
    ls_status st = refuse(shard, what);

    ls_err_hint("Build it again with \"lineshaft data build\".");
    return st;
}

/* Length and identity of the file: enough to trust that the header is one of ours. */
static ls_status check_identity(const ls_token_shard *shard, const ls_token_shard_header *h,
                                size_t len)
{
    static const char magic[] = LS_TOKEN_SHARD_MAGIC;
    char text[160];

    if (len < sizeof magic - 1 || memcmp(h->magic, magic, sizeof magic - 1) != 0) {
        ls_status st = refuse(shard, "is not a token shard");
        ls_err_hint("Text files belong under data.text; \"lineshaft data build\" makes shards.");
        return st;
    }
    if (len < LS_TOKEN_SHARD_HEADER)
        return refuse_rebuild(shard, "is cut off inside its header");
    if (h->version != LS_TOKEN_SHARD_VERSION && h->version != LS_TOKEN_SHARD_MARKED) {
        snprintf(text, sizeof text, "has shard format %u, this program reads formats %d and %d",
                 (unsigned)h->version, LS_TOKEN_SHARD_VERSION, LS_TOKEN_SHARD_MARKED);
        return refuse_rebuild(shard, text);
    }
    if (ls_hash_crc32c(0, h, offsetof(ls_token_shard_header, crc)) != h->crc)
        return refuse_rebuild(shard, "is damaged: the checksum of its header does not match");
    return LS_OK;
}

static ls_status check_lengths(const ls_token_shard *shard, const ls_token_shard_header *h,
                               size_t len)
{
    uint64_t token_bytes, start_bytes, end;
    char text[200];

    if (h->header_bytes != LS_TOKEN_SHARD_HEADER || h->tokens_at != LS_TOKEN_SHARD_HEADER)
        return refuse_rebuild(shard, "is damaged: its header has an impossible length");
    if (h->width != 1 && h->width != 2 && h->width != 4)
        return refuse_rebuild(shard, "is damaged: a token is neither 1, 2 nor 4 bytes wide");
    if (h->vocab < 1 || h->vocab > INT32_MAX || (h->width < 4 && h->vocab > 1u << (8 * h->width)))
        return refuse_rebuild(shard, "is damaged: its vocabulary does not fit its tokens");
    if (h->separator < 0 || (uint32_t)h->separator >= h->vocab)
        return refuse_rebuild(shard, "is damaged: its separator is outside its vocabulary");
    if (h->documents > h->tokens || (h->tokens && !h->documents))
        return refuse_rebuild(shard, "is damaged: it has an impossible number of documents");
    /* starts_at rounds up by at most 7, so a limit far below the top keeps all sums exact. */
    if (__builtin_mul_overflow(h->tokens, (uint64_t)h->width, &token_bytes) ||
        __builtin_mul_overflow(h->documents, (uint64_t)8, &start_bytes) ||
        token_bytes > INT64_MAX / 4 || start_bytes > INT64_MAX / 4)
        return refuse_rebuild(shard, "is damaged: it claims more tokens than any file can hold");
    if (h->starts_at != ls_token_shard_starts_at(h->tokens, h->width))
        return refuse_rebuild(shard, "is damaged: its document index is not where it must be");
    end = h->starts_at + start_bytes;
    if (h->version == LS_TOKEN_SHARD_MARKED) {
        if (h->marks_at != end || h->window < 1 || h->window > INT32_MAX ||
            h->tokens % h->window != 0 || h->marked > h->tokens)
            return refuse_rebuild(shard, "is damaged: its marks or windows are impossible");
        end += ls_token_shard_mark_bytes(h->tokens);
    }
    if (end != len) {
        snprintf(text, sizeof text,
                 len < end ? "is cut off: it has %zu of %llu bytes"
                           : "is damaged: it has %zu bytes, its header says %llu",
                 len, (unsigned long long)end);
        return refuse_rebuild(shard, text);
    }
    return LS_OK;
}

static ls_status check_names(const ls_token_shard *shard, const ls_token_shard_header *h)
{
    if (!memchr(h->tokenizer, '\0', sizeof h->tokenizer) ||
        !memchr(h->source, '\0', sizeof h->source))
        return refuse_rebuild(shard, "is damaged: a name in its header does not end");
    return LS_OK;
}

static void take_header(ls_token_shard *shard, const ls_token_shard_header *h)
{
    bool marked = h->version == LS_TOKEN_SHARD_MARKED;

    shard->version = (int)h->version;
    shard->window = marked ? (int64_t)h->window : 0;
    shard->marked = (int64_t)(marked ? h->marked : h->tokens);
    shard->marks_hash = h->marks_hash;
    shard->width = (int)h->width;
    shard->vocab = (int32_t)h->vocab;
    shard->separator = h->separator;
    shard->tokens = (int64_t)h->tokens;
    shard->documents = (int64_t)h->documents;
    shard->tokenizer_hash = h->tokenizer_hash;
    shard->source_hash = h->source_hash;
    shard->tokens_hash = h->tokens_hash;
    shard->starts_hash = h->starts_hash;
    shard->key = h->key;
    memcpy(shard->tokenizer, h->tokenizer, sizeof shard->tokenizer);
    memcpy(shard->source, h->source, sizeof shard->source);
}

static ls_status parse(ls_token_shard *shard, const unsigned char *bytes, size_t len)
{
    ls_status st = LS_OK;
    ls_token_shard_header h = {.version = 0};

    memcpy(&h, bytes, len < sizeof h ? len : sizeof h);
    LS_TRY(st, check_identity(shard, &h, len), out);
    LS_TRY(st, check_lengths(shard, &h, len), out);
    LS_TRY(st, check_names(shard, &h), out);
    take_header(shard, &h);
    shard->token_bytes = bytes + h.tokens_at;
    shard->start_bytes = bytes + h.starts_at;
    shard->mark_bytes = h.version == LS_TOKEN_SHARD_MARKED ? bytes + h.marks_at : NULL;
out:
    return st;
}

ls_status ls_token_shard_view(ls_token_shard *shard, const void *bytes, size_t len,
                              const char *name)
{
    ls_status st = LS_OK;

    *shard = (ls_token_shard){.width = 0};
    shard->path = ls_mem_strdup(name);
    if (!shard->path)
        return LS_ENOMEM;
    st = parse(shard, bytes, len);
    if (st != LS_OK)
        ls_token_shard_close(shard);
    return st;
}

ls_status ls_token_shard_open(ls_token_shard *shard, const char *path)
{
    ls_file_map map;
    ls_status st = ls_file_map_open(&map, path);

    *shard = (ls_token_shard){.width = 0};
    if (st != LS_OK)
        return st;
    st = ls_token_shard_view(shard, map.bytes, map.len, path);
    if (st != LS_OK)
        ls_file_map_close(&map);
    else
        shard->map = map;
    return st;
}

void ls_token_shard_close(ls_token_shard *shard)
{
    ls_file_map_close(&shard->map);
    ls_mem_free(shard->path);
    *shard = (ls_token_shard){.width = 0};
}

/* Widen n tokens and return the largest, as unsigned: a negative one shows as too large. */
static uint32_t widen(const unsigned char *from, int width, int64_t n, int32_t *ids_out)
{
    uint32_t most = 0;

    for (int64_t i = 0; i < n; i++) {
        uint32_t id;
        if (width == 1) {
            id = from[i];
        } else if (width == 2) {
            uint16_t two;
            memcpy(&two, from + 2 * i, sizeof two);
            id = two;
        } else {
            memcpy(&id, from + 4 * i, sizeof id);
        }
        most = id > most ? id : most;
        ids_out[i] = (int32_t)id;
    }
    return most;
}

ls_status ls_token_shard_read(const ls_token_shard *shard, int64_t first, int64_t n,
                              int32_t *ids_out)
{
    LS_BUG_IF(first < 0 || n < 0 || n > shard->tokens - first, "reading tokens %lld + %lld of %lld",
              (long long)first, (long long)n, (long long)shard->tokens);
    uint32_t most = widen(shard->token_bytes + first * shard->width, shard->width, n, ids_out);
    if (n == 0 || most < (uint32_t)shard->vocab)
        return LS_OK;
    for (int64_t i = 0; i < n; i++)
        if ((uint32_t)ids_out[i] >= (uint32_t)shard->vocab) {
            first += i;
            break;
        }
    ls_status st =
        ls_fail(LS_EDATA, "\"%s\" is damaged: token %lld is %u, its vocabulary ends at %d",
                shard->path, (long long)first, (unsigned)most, (int)shard->vocab - 1);
    ls_err_hint("Build it again with \"lineshaft data build\".");
    return st;
}

static uint64_t raw_start(const ls_token_shard *shard, int64_t i)
{
    uint64_t start;

    memcpy(&start, shard->start_bytes + 8 * i, sizeof start);
    return start;
}

int64_t ls_token_shard_start(const ls_token_shard *shard, int64_t i)
{
    LS_BUG_IF(i < 0 || i >= shard->documents, "document %lld of %lld", (long long)i,
              (long long)shard->documents);
    uint64_t start = raw_start(shard, i);
    return start > (uint64_t)shard->tokens ? shard->tokens : (int64_t)start;
}

int64_t ls_token_shard_document_at(const ls_token_shard *shard, int64_t token)
{
    int64_t low = 0, high = shard->documents - 1;

    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (ls_token_shard_start(shard, middle) <= token)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static ls_status verify_starts(const ls_token_shard *shard)
{
    for (int64_t i = 0; i < shard->documents; i++) {
        uint64_t start = raw_start(shard, i);
        bool good = i == 0 ? start == 0 : start > raw_start(shard, i - 1);
        if (!good || start >= (uint64_t)shard->tokens) {
            char text[120];
            snprintf(text, sizeof text, "is damaged: document %lld starts at token %llu",
                     (long long)i, (unsigned long long)start);
            return refuse_rebuild(shard, text);
        }
    }
    return LS_OK;
}

/* The bits that are set, none of them behind the last token, and documents inside windows. */
static ls_status verify_marks(const ls_token_shard *shard)
{
    int64_t bytes = (int64_t)ls_token_shard_mark_bytes((uint64_t)shard->tokens), set = 0;

    if (!shard->mark_bytes)
        return LS_OK;
    if (!ls_hash_equal(ls_hash_bytes(shard->mark_bytes, (size_t)bytes), shard->marks_hash))
        return refuse_rebuild(shard, "is damaged: the checksum of its marks does not match");
    for (int64_t i = 0; i < bytes; i++)
        set += __builtin_popcount(shard->mark_bytes[i]);
    if (set != shard->marked ||
        (shard->tokens % 8 && shard->mark_bytes[bytes - 1] >> (shard->tokens % 8)))
        return refuse_rebuild(shard, "is damaged: its marks do not match its tokens");
    for (int64_t i = 0; i < shard->documents; i++) {
        int64_t first = ls_token_shard_start(shard, i);
        int64_t end = i + 1 < shard->documents ? ls_token_shard_start(shard, i + 1) : shard->tokens;
        if (first / shard->window != (end - 1) / shard->window) {
            char text[120];
            snprintf(text, sizeof text, "is damaged: document %lld lies in two windows",
                     (long long)i);
            return refuse_rebuild(shard, text);
        }
    }
    return LS_OK;
}

static ls_status verify_ids(const ls_token_shard *shard)
{
    int32_t ids[1024];

    if (shard->width < 4 && shard->vocab == 1 << (8 * shard->width))
        return LS_OK; /* every value of that width is an id */
    for (int64_t at = 0; at < shard->tokens;) {
        int64_t n = ls_min_i64((int64_t)LS_COUNT(ids), shard->tokens - at);
        ls_status st = ls_token_shard_read(shard, at, n, ids);
        if (st != LS_OK)
            return st;
        at += n;
    }
    return LS_OK;
}

ls_status ls_token_shard_verify(const ls_token_shard *shard)
{
    ls_status st = LS_OK;
    ls_hash tokens =
        ls_hash_bytes(shard->token_bytes, (size_t)shard->tokens * (size_t)shard->width);
    ls_hash starts = ls_hash_bytes(shard->start_bytes, (size_t)shard->documents * 8);

    if (!ls_hash_equal(tokens, shard->tokens_hash))
        return refuse_rebuild(shard, "is damaged: the checksum of its tokens does not match");
    if (!ls_hash_equal(starts, shard->starts_hash))
        return refuse_rebuild(shard, "is damaged: the checksum of its documents does not match");
    LS_TRY(st, verify_starts(shard), out);
    LS_TRY(st, verify_marks(shard), out);
    LS_TRY(st, verify_ids(shard), out);
out:
    return st;
}

ls_status ls_token_shard_check_tokenizer(const ls_token_shard *shard, const ls_tokenizer *tok)
{
    char theirs[LS_HASH_HEX], ours[LS_HASH_HEX];
    ls_hash hash = ls_tokenizer_hash(tok);

    if (ls_hash_equal(hash, shard->tokenizer_hash) && shard->vocab == ls_tokenizer_vocab(tok))
        return LS_OK;
    ls_hash_hex(shard->tokenizer_hash, theirs);
    ls_hash_hex(hash, ours);
    ls_status st = ls_fail(LS_EDATA,
                           "\"%s\" was made with tokenizer \"%s\" (%.8s, %d ids), this run uses "
                           "\"%s\" (%.8s, %d ids)",
                           shard->path, shard->tokenizer, theirs, (int)shard->vocab,
                           ls_tokenizer_name(tok), ours, (int)ls_tokenizer_vocab(tok));
    ls_err_hint("Set data.tokenizer to the one that made the shard, or build the shard again with "
                "\"lineshaft data build --tokenizer %s\".",
                ls_tokenizer_name(tok));
    return st;
}
