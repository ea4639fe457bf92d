/* What a tensor is called that stands for all gradients of a bucket, as they were not recorded. */
#pragma once

#define WHOLE_BUCKET "bucket "
