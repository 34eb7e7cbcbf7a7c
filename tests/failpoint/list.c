/* SPDX-License-Identifier: Apache-2.0 */
/* Print the points of shm/failpoint.h, a line each: name and who passes it. */
#include <stdio.h>

#include "failpoint.h"

int main(void)
{
#define X(name, who) puts(#name " " #who);
	ENGRAM_FAILPOINT_LIST(X)
#undef X
	return 0;
}
