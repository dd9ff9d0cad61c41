// SPDX-License-Identifier: GPL-2.0
/*
 * A stand-in for the kernel drivers of accelerators, for ttft's tests. It drives nothing: it has
 * their device numbers, takes their calls, lets each wait as long as it is told and succeeds.
 *
 *   nvidia0 195:0, nvidiactl 195:255    the nodes are made by mknod, as nvidia-modprobe does
 *   nvidia-uvm, nvidia-uvm-tools        a major of its own, named in /proc/devices
 *   kfd                                 the same
 *
 * Numbers and structures: NVIDIA/open-gpu-kernel-modules (nv_escape.h, nv-ioctl-numbers.h,
 * uvm_ioctl.h) and Linux's kfd_ioctl.h.
 */
#include <linux/cdev.h>
#include <linux/delay.h>
#include <linux/fs.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/poll.h>
#include <linux/slab.h>
#include <linux/uaccess.h>
#include <linux/workqueue.h>

#define NV_MAJOR 195
#define NV_MINOR_DEVICE 0
#define NV_MINOR_CTL 255
#define NV_XFER_CMD 211
#define NV_CHECK_VERSION_STR 210
#define MOST_BYTES 65536

static unsigned int open_us;
module_param(open_us, uint, 0644);
MODULE_PARM_DESC(open_us, "time of the first open of nvidia0, which brings the device up");

static bool persistent;
module_param(persistent, bool, 0644);
MODULE_PARM_DESC(persistent, "the device stays up when the last user closes it");

static unsigned int call_us;
module_param(call_us, uint, 0644);
MODULE_PARM_DESC(call_us, "time of each ioctl");

static unsigned int map_us;
module_param(map_us, uint, 0644);
MODULE_PARM_DESC(map_us, "time of each mmap");

static unsigned int close_us;
module_param(close_us, uint, 0644);
MODULE_PARM_DESC(close_us, "time of each close");

static unsigned int event_us;
module_param(event_us, uint, 0644);
MODULE_PARM_DESC(event_us, "time until a poll has something; 0: never");

/* nv_ioctl_xfer_t: how calls with large arguments are passed */
struct xfer {
	u32 cmd;
	u32 size;
	u64 ptr;
};

struct client {
	wait_queue_head_t queue;
	struct delayed_work event;
	int pending;
	bool device;
};

static const u32 frontend_calls[] = {
	200,  201,  206,  207,	209,  210,  212,  213,	214,  215,  216,
	217,  218,  0x27, 0x28, 0x29, 0x2A, 0x2B, 0x34, 0x35, 0x41, 0x4A,
	0x4D, 0x4E, 0x4F, 0x52, 0x54, 0x57, 0x58, 0x59, 0x5C, 0x5D, 0x5E,
};

static const u32 uvm_calls[] = {
	0x30000001, 0x30000002, 23, 24, 25, 26, 27, 28, 29, 30, 31, 33, 34, 37, 38, 39,
	40,	    41,		42, 43, 44, 45, 46, 47, 51, 53, 56, 57, 58, 59, 60, 61,
	62,	    63,		64, 65, 66, 67, 68, 70, 71, 72, 73, 74, 75, 76, 77, 80,
};

/* The arguments of UVM are not in the number: the largest that is read here. */
#define UVM_BYTES 32
#define KFD_FIRST 0x01
#define KFD_LAST 0x28

static DEFINE_MUTEX(bring_up);
static unsigned int users;
static bool ready;

static void take(unsigned int us)
{
	if (us)
		usleep_range(us, us + 1);
}

static bool known(u32 number, const u32 *calls, size_t count)
{
	while (count--)
		if (calls[count] == number)
			return true;
	return false;
}

/* nv_ioctl_rm_api_version_t: a user library that hears no such answer gives up at once. */
struct version_check {
	u32 cmd;
	u32 reply;
	char text[64];
};

/* Arguments are copied in and out, as drivers do. */
static long serve(void __user *at, size_t size, bool version)
{
	void *copy;
	long error = 0;

	if (size > MOST_BYTES)
		return -EINVAL;
	copy = kmalloc(size ?: 1, GFP_KERNEL);
	if (!copy)
		return -ENOMEM;
	if (copy_from_user(copy, at, size))
		error = -EFAULT;
	take(call_us);
	if (version && size == sizeof(struct version_check))
		((struct version_check *)copy)->reply = 1;
	if (!error && copy_to_user(at, copy, size))
		error = -EFAULT;
	kfree(copy);
	return error;
}

static void event_comes(struct work_struct *work)
{
	struct client *client = container_of(to_delayed_work(work), struct client, event);

	WRITE_ONCE(client->pending, 1);
	wake_up_interruptible(&client->queue);
}

static int open_client(struct file *file, bool device)
{
	struct client *client = kzalloc(sizeof(*client), GFP_KERNEL);

	if (!client)
		return -ENOMEM;
	init_waitqueue_head(&client->queue);
	INIT_DELAYED_WORK(&client->event, event_comes);
	client->device = device;
	file->private_data = client;
	if (!device)
		return 0;
	mutex_lock(&bring_up);
	if (!ready)
		take(open_us);
	ready = true;
	users++;
	mutex_unlock(&bring_up);
	return 0;
}

static int open_frontend(struct inode *inode, struct file *file)
{
	return open_client(file, iminor(inode) == NV_MINOR_DEVICE);
}

static int open_other(struct inode *inode, struct file *file)
{
	return open_client(file, false);
}

static int release_client(struct inode *inode, struct file *file)
{
	struct client *client = file->private_data;

	take(close_us);
	cancel_delayed_work_sync(&client->event);
	if (client->device) {
		mutex_lock(&bring_up);
		users--;
		if (!users && !persistent)
			ready = false;
		mutex_unlock(&bring_up);
	}
	kfree(client);
	return 0;
}

static long frontend_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	void __user *at = (void __user *)arg;
	u32 number = _IOC_NR(cmd), size = _IOC_SIZE(cmd);
	struct xfer xfer;

	if (number == NV_XFER_CMD) {
		if (size != sizeof(xfer))
			return -EINVAL;
		if (copy_from_user(&xfer, at, sizeof(xfer)))
			return -EFAULT;
		number = xfer.cmd;
		size = xfer.size;
		at = u64_to_user_ptr(xfer.ptr);
	}
	if (!known(number, frontend_calls, ARRAY_SIZE(frontend_calls)))
		return -EINVAL;
	return serve(at, size, number == NV_CHECK_VERSION_STR);
}

static long uvm_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	if (!known(cmd, uvm_calls, ARRAY_SIZE(uvm_calls)))
		return -EINVAL;
	return serve((void __user *)arg, UVM_BYTES, false);
}

static long kfd_ioctl(struct file *file, unsigned int cmd, unsigned long arg)
{
	if (_IOC_TYPE(cmd) != 'K' || _IOC_NR(cmd) < KFD_FIRST || _IOC_NR(cmd) > KFD_LAST)
		return -EINVAL;
	return serve((void __user *)arg, _IOC_SIZE(cmd), false);
}

static __poll_t poll_client(struct file *file, poll_table *wait)
{
	struct client *client = file->private_data;

	poll_wait(file, &client->queue, wait);
	if (xchg(&client->pending, 0))
		return EPOLLIN | EPOLLPRI;
	if (event_us && !poll_does_not_wait(wait))
		schedule_delayed_work(&client->event, usecs_to_jiffies(event_us));
	return 0;
}

static vm_fault_t fault(struct vm_fault *vmf)
{
	vmf->page = alloc_page(GFP_KERNEL | __GFP_ZERO);
	return vmf->page ? 0 : VM_FAULT_OOM;
}

static const struct vm_operations_struct memory = {.fault = fault};

static int map(struct vm_area_struct *vma)
{
	take(map_us);
	vma->vm_ops = &memory;
	return 0;
}

static int frontend_mmap(struct file *file, struct vm_area_struct *vma)
{
	return vma->vm_pgoff ? -EINVAL : map(vma);
}

static int uvm_mmap(struct file *file, struct vm_area_struct *vma)
{
	return vma->vm_pgoff << PAGE_SHIFT == vma->vm_start ? map(vma) : -EINVAL;
}

static int kfd_mmap(struct file *file, struct vm_area_struct *vma)
{
	return map(vma);
}

static const struct file_operations frontend_fops = {
	.owner = THIS_MODULE,
	.open = open_frontend,
	.release = release_client,
	.unlocked_ioctl = frontend_ioctl,
	.poll = poll_client,
	.mmap = frontend_mmap,
};

static const struct file_operations uvm_fops = {
	.owner = THIS_MODULE,
	.open = open_other,
	.release = release_client,
	.unlocked_ioctl = uvm_ioctl,
	.poll = poll_client,
	.mmap = uvm_mmap,
};

static const struct file_operations kfd_fops = {
	.owner = THIS_MODULE,
	.open = open_other,
	.release = release_client,
	.unlocked_ioctl = kfd_ioctl,
	.mmap = kfd_mmap,
};

static struct node {
	const char *name;
	const struct file_operations *fops;
	unsigned int major, minor, count;
	struct cdev cdev;
	dev_t at;
} nodes[] = {
	{"nvidia", &frontend_fops, NV_MAJOR, NV_MINOR_DEVICE, 1},
	{"nvidiactl", &frontend_fops, NV_MAJOR, NV_MINOR_CTL, 1},
	{"nvidia-uvm", &uvm_fops, 0, 0, 2},
	{"kfd", &kfd_fops, 0, 0, 1},
};

static void take_away(struct node *node)
{
	cdev_del(&node->cdev);
	unregister_chrdev_region(node->at, node->count);
}

static int put_up(struct node *node)
{
	int error;

	node->at = MKDEV(node->major, node->minor);
	error = node->major ? register_chrdev_region(node->at, node->count, node->name)
			    : alloc_chrdev_region(&node->at, 0, node->count, node->name);
	if (error)
		return error;
	cdev_init(&node->cdev, node->fops);
	node->cdev.owner = THIS_MODULE;
	error = cdev_add(&node->cdev, node->at, node->count);
	if (error)
		unregister_chrdev_region(node->at, node->count);
	return error;
}

static int __init begin(void)
{
	size_t i;
	int error;

	for (i = 0; i < ARRAY_SIZE(nodes); i++) {
		error = put_up(&nodes[i]);
		if (error) {
			while (i--)
				take_away(&nodes[i]);
			return error;
		}
	}
	return 0;
}

static void __exit end(void)
{
	size_t i;

	for (i = 0; i < ARRAY_SIZE(nodes); i++)
		take_away(&nodes[i]);
}

module_init(begin);
module_exit(end);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("A stand-in for accelerators' drivers, for ttft's tests: it drives no device");
