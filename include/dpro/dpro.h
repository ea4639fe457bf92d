/* The whole public interface. */
#ifndef DPRO_DPRO_H
#define DPRO_DPRO_H

#include <dpro/attach.h>
#include <dpro/diagnose.h>
#include <dpro/dimensions.h>
#include <dpro/error.h>
#include <dpro/graph.h>
#include <dpro/job.h>
#include <dpro/log.h>
#include <dpro/memory.h>
#include <dpro/model.h>
#include <dpro/optimize.h>
#include <dpro/options.h>
#include <dpro/pass.h>
#include <dpro/processes.h>
#include <dpro/recording.h>
#include <dpro/replay.h>
#include <dpro/report.h>
#include <dpro/table.h>
#include <dpro/trace.h>
#include <dpro/verify.h>
#include <dpro/whatif.h>

#endif
