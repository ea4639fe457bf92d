/* The head and foot of a page. */
#include "report/page.h"

void page_begin(struct writer *w, const char *title, const char *beside)
{
    writer_printf(w,
                  "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                  "<meta name=\"viewport\" content=\"width=device-width\">\n"
                  "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                  "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n"
                  "<title>%s</title>\n<style>\n",
                  title);
    writer_put(w, asset_report_css, asset_report_css_size);
    writer_printf(w,
                  "</style>\n</head>\n<body>\n<noscript>This page needs JavaScript. The same "
                  "facts are in %s beside it.</noscript>\n"
                  "<script type=\"application/json\" id=\"data\">\n",
                  beside);
    w->need_comma = false;
}

void page_scripts(struct writer *w)
{
    writer_text(w, "\n</script>\n<script>\n");
    writer_put(w, asset_page_js, asset_page_js_size);
}

void page_end(struct writer *w)
{
    writer_text(w, "</script>\n</body>\n</html>\n");
}
