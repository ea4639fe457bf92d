/* What all pages begin and end with. A page is one file that opens offline. Its data is embedded,
 * its script makes text of it, never markup, and a content security policy shuts the network
 * out. */
#pragma once

#include "base/writer.h"

/* Files of this folder that are part of the binary; made by tools/embed.py. */
extern const unsigned char asset_page_js[];
extern const size_t asset_page_js_size;
extern const unsigned char asset_report_js[];
extern const size_t asset_report_js_size;
extern const unsigned char asset_timeline_js[];
extern const size_t asset_timeline_js_size;
extern const unsigned char asset_memory_js[];
extern const size_t asset_memory_js_size;
extern const unsigned char asset_dimensions_js[];
extern const size_t asset_dimensions_js_size;
extern const unsigned char asset_optimize_js[];
extern const size_t asset_optimize_js_size;
extern const unsigned char asset_report_css[];
extern const size_t asset_report_css_size;

/* What is written next is the page's data, a JSON value; `beside` holds the same for programs. */
void page_begin(struct writer *writer, const char *title, const char *beside);
/* Ends the data; then come scripts. */
void page_scripts(struct writer *writer);
void page_end(struct writer *writer);
