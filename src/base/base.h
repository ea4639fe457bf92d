/* What nearly every file uses: the language's plain headers, and the parts of base that stand in
 * for what C lacks. No file includes one of these by its own name as well (lint). */
#pragma once

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/array.h"
#include "base/error.h"
#include "base/log.h"
#include "base/map.h"
#include "base/memory.h"
#include "base/sort.h"
#include "base/stats.h"
#include "base/strtab.h"
#include "base/text.h"
#include "base/time.h"
