/* SPDX-License-Identifier: Apache-2.0 */
#include <utf8proc.h>

#include "unicode_exceptions.h"
#include "unicode_fold.h"

static const struct unicode_exception *find_exception(int32_t point)
{
	size_t low = 0, high = UNICODE_EXCEPTIONS;

	while (low < high) {
		const size_t middle = low + (high - low) / 2;

		if (unicode_exceptions[middle].last < point)
			low = middle + 1;
		else
			high = middle;
	}
	if (low < UNICODE_EXCEPTIONS && unicode_exceptions[low].first <= point)
		return &unicode_exceptions[low];
	return NULL;
}

static bool is_mark(int32_t point)
{
	switch (utf8proc_category(point)) {
	case UTF8PROC_CATEGORY_MN:
	case UTF8PROC_CATEGORY_MC:
	case UTF8PROC_CATEGORY_ME:
		return true;
	default:
		return false;
	}
}

size_t unicode_fold(int32_t point, int32_t out[UNICODE_FOLD_MAX])
{
	const struct unicode_exception *exception = find_exception(point);
	int boundary = UTF8PROC_BOUNDCLASS_START;
	utf8proc_ssize_t n;
	size_t kept = 0;

	if (exception && exception->shift == UNICODE_DROPPED)
		return 0;
	if (exception) {
		out[0] = point + exception->shift;
		return 1;
	}
	n = utf8proc_decompose_char(point, out, UNICODE_FOLD_MAX,
				    UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT,
				    &boundary);
	if (n < 0 || n > UNICODE_FOLD_MAX) { /* no character has that many */
		out[0] = point;
		n = 1;
	}
	for (utf8proc_ssize_t i = 0; i < n; i++)
		if (!is_mark(out[i]))
			out[kept++] = utf8proc_tolower(out[i]);
	return kept;
}

bool unicode_is_space(int32_t point)
{
	return (point >= 0x09 && point <= 0x0d) || point == 0x20 ||
	       point == 0x85 || point == 0xa0 || point == 0x1680 ||
	       (point >= 0x2000 && point <= 0x200a) || point == 0x2028 ||
	       point == 0x2029 || point == 0x202f || point == 0x205f ||
	       point == 0x3000;
}
