/* report/assets.h: files of this folder that are part of the binary; made by tools/embed.py. */
#ifndef REPORT_ASSETS_H
#define REPORT_ASSETS_H

#include <stddef.h>

extern const unsigned char asset_report_js[];
extern const size_t asset_report_js_size;
extern const unsigned char asset_timeline_js[];
extern const size_t asset_timeline_js_size;
extern const unsigned char asset_optimize_js[];
extern const size_t asset_optimize_js_size;
extern const unsigned char asset_report_css[];
extern const size_t asset_report_css_size;

#endif
