/* page_assets.h -- the files of the page (web/), carried inside the program, so that it needs neither
 * files nor a network. */
#pragma once
#include "base/str.h"

LS_C_BEGIN

typedef struct ls_page_asset {
    const char *path; /* "/page.js" */
    const char *type; /* of HTTP */
    const char *text;
} ls_page_asset;

/* Ends with a row whose path is NULL. Scripts stand in the order in which they run. */
extern const ls_page_asset ls_page_assets[];

/* The frame of the page, with its styles and scripts as files of the server. */
void ls_page_assets_served(ls_str *html_out);

/* The frame with everything inside: data is JSON, in which no '<' may be. Its policy lets run only
 * these scripts, by their hashes, and lets nothing be fetched. LS_EFAIL: no hash could be made. */
ls_status ls_page_assets_alone(const ls_str *data, ls_str *html_out);

LS_C_END
